/* What is known of runs, wherever a page hears of it: the outputs of cells, the kernel's widget while
   the run goes on, and the server where neither tells it. Each place that shows a run listens here. */

import { Signal } from '@lumino/signaling';
import { isOver } from '../run.ts';
import type { Snapshot } from '../snapshot.ts';

/** The source of a snapshot. */
export type Source = 'output' | 'kernel' | 'server';

/** The state of a run, as known here. */
export interface Known {
  snapshot: Snapshot;
  /** When the kernel itself last reported it, by the page's clock; 0 if never. */
  heard: number;
  /** A sentence about why it is not up to date. */
  note: string;
  /** Whether no more news of it will come, although its end is not known. */
  isLost: boolean;
}

/** When a snapshot was made, from the seconds of its run. */
function time({ run }: Snapshot): number {
  return run ? run.started + run.seconds : 0;
}

/** Runs that are over and still known here: their cells have them, too. */
const MOST_OVER = 100;

export class Feed {
  /** Emitted with the id of a run whose known state has changed. */
  readonly changed = new Signal<this, string>(this);
  readonly #runs = new Map<string, Known>();

  get(run: string): Known | undefined {
    return this.#runs.get(run);
  }

  /** Whether the kernel itself has told this page of a run. */
  isHeard(run: string): boolean {
    return (this.#runs.get(run)?.heard ?? 0) > 0;
  }

  /** Adds a snapshot, unless a later one is known. */
  take(snapshot: Snapshot, source: Source): void {
    const id = snapshot.run?.id;
    if (id === undefined) {
      return;
    }
    const known = this.#runs.get(id);
    if (known && isOver(known.snapshot) && (source !== 'output' || !isOver(snapshot))) {
      return;
    }
    if (known && source === 'output' && !isOver(snapshot) && known.heard > 0) {
      return;
    }
    // The kernel's file for the server may be older than what it has sent to the page.
    if (known && source === 'server' && !isOver(snapshot) && time(snapshot) < time(known.snapshot)) {
      return;
    }
    const heard = source === 'kernel' ? performance.now() : (known?.heard ?? 0);
    // The server does not know which rank's output the page has asked for.
    const kept = source === 'server' && known ? { ...snapshot, output: known.snapshot.output } : snapshot;
    this.#runs.delete(id); // so that those heard of last are the last
    this.#runs.set(id, { snapshot: kept, heard, note: '', isLost: false });
    if (isOver(kept)) {
      this.#forget();
    }
    this.changed.emit(id);
  }

  /** Forgets runs that ended long ago: a page may be open for weeks, and have thousands. */
  #forget(): void {
    const over = [...this.#runs].filter(([, { snapshot }]) => isOver(snapshot));
    for (const [run] of over.slice(0, -MOST_OVER)) {
      this.#runs.delete(run);
    }
  }

  /** Records why there is no news of a run. */
  explain(run: string, note: string, isLost: boolean): void {
    const known = this.#runs.get(run);
    if (known && !isOver(known.snapshot) && (known.note !== note || known.isLost !== isLost)) {
      this.#runs.set(run, { ...known, note, isLost });
      this.changed.emit(run);
    }
  }

  /** Adds the output of a rank that the page has requested. */
  setOutput(run: string, rank: number, text: string): void {
    const known = this.#runs.get(run);
    if (known) {
      this.#runs.set(run, { ...known, snapshot: { ...known.snapshot, output: { rank, text } } });
      this.changed.emit(run);
    }
  }
}
