/* The end of what a rank prints, for as long as it is followed. */

import type { LogChunk } from './api.ts';

/** Most characters of output to keep; the log has all of it. */
const MOST = 100_000;

export class Tail {
  readonly #draw: () => void;
  #text = '';
  #drawing = false;

  /** Calls `draw` with the next frame after something was added, however much. */
  constructor(draw: () => void) {
    this.#draw = draw;
  }

  get text(): string {
    return this.#text;
  }

  /** Adds a part of the rank's log; one that `isFirst` takes the place of what was there. */
  add({ entries }: LogChunk, isFirst: boolean): void {
    const added = entries.map((entry) => entry.text).join('');
    this.#text = (isFirst ? added : this.#text + added).slice(-MOST);
    if (!this.#drawing) {
      this.#drawing = true;
      requestAnimationFrame(() => {
        this.#drawing = false;
        this.#draw();
      });
    }
  }
}
