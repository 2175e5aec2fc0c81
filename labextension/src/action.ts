/* What the user does in the view of a run. */

/** A rank can be chosen before there is a run: what it prints later is shown then. */
export type Action =
  | { kind: 'select'; run: string | null; rank: number | null }
  | { kind: 'stop'; run: string }
  | { kind: 'where'; run: string }
  | { kind: 'open'; open: boolean }
  | { kind: 'restore'; run: string }
  | { kind: 'go'; place: Place }
  | { kind: 'cluster'; cluster: string };

/** A line of code that a traceback names: of a cell by its number, or of a file. */
export interface Place {
  cell: number | null;
  file: string | null;
  line: number;
}
