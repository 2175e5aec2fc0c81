/* What the user does in the view of a run. */

import type { History, Profile, Variables } from './snapshot.ts';

/** A rank can be chosen before there is a run: its later output is then shown. */
export type Action =
  | { kind: 'select'; run: string | null; rank: number | null }
  | { kind: 'stop'; run: string }
  | { kind: 'where'; run: string }
  | { kind: 'open'; open: boolean }
  | { kind: 'restore'; run: string }
  | { kind: 'go'; place: Place }
  | { kind: 'cluster'; cluster: string };

/** What a page can ask of a cluster beside its snapshots; `jupyter_sky/notebook/sidebar/answers.py` knows
    the answers. */
export interface Ask {
  /** Usage since the `at` of the last answer or, with 0, in the last ten minutes. */
  history(since: number): Promise<History>;
  variables(): Promise<Variables>;
  /** Profiles the ranks for ten seconds. */
  profile(): Promise<Profile>;
}

/** A line of code that a traceback names: of a cell by its number, or of a file. */
export interface Place {
  cell: number | null;
  file: string | null;
  line: number;
}
