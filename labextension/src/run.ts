/* What the snapshot of a cluster says of its run. */

import type { Snapshot } from './snapshot.ts';

/** Whether a run was there, and has ended. */
export function isOver({ run }: Snapshot): boolean {
  return run !== null && run.state !== 'running' && run.state !== 'waiting';
}
