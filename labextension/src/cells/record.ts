/* The record of a run as an output of a cell, which is saved with the notebook. */

import type { Rank, Snapshot } from '../snapshot.ts';

/** Type of the outputs; `jupyter_sky/notebook/panel/strip.py` makes them. */
export const MIME = 'application/vnd.jupyter-sky.run+json';

/** The content of such an output. */
export interface RunOutput {
  version: 1;
  open: boolean;
  snapshot: SavedSnapshot;
}

/** A snapshot whose ranks lack the fields that have the values of `UNSAID`, which most have. */
export type SavedSnapshot = Omit<Snapshot, 'ranks'> & { ranks: SavedRank[] };
type SavedRank = Pick<Rank, 'rank' | 'node' | 'phase'> & Partial<Rank>;

const UNSAID: Omit<Rank, 'rank' | 'node' | 'phase'> = {
  utilisation: null,
  memory: null,
  gpu: null,
  line: '',
  trouble: null,
  outcome: null,
  seconds: null,
  error: null,
  progress: null,
  restarted: false,
  began_empty: false
};

export function fromSaved(saved: SavedSnapshot): Snapshot {
  return { ...saved, ranks: saved.ranks.map((rank) => ({ ...UNSAID, ...rank })) };
}

export function toSaved(snapshot: Snapshot): SavedSnapshot {
  const isSaid = ([field, value]: [string, unknown]) => value !== (UNSAID as { [field: string]: unknown })[field];
  const ranks = snapshot.ranks.map((rank) => Object.fromEntries(Object.entries(rank).filter(isSaid)) as unknown as SavedRank);
  // The output of the shown rank is in the cell's output already.
  return { ...snapshot, ranks, output: { rank: snapshot.output.rank, text: '' } };
}
