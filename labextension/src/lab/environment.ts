/* Shows what the current notebook's kernel lacks of jupyter_sky, and what to type. */

import { element } from '../dom.ts';
import { setSentence } from '../sidebar/sentence.ts';
import type { IClusters } from './clusters.ts';
import type { Notebooks } from './notebooks.ts';

export class EnvironmentNote {
  readonly element = element('div', 'jsky-notice', { role: 'status' });
  readonly #clusters: IClusters;
  readonly #notebooks: Notebooks;
  #active = false;
  #kernel: string | null = null;

  constructor(clusters: IClusters, notebooks: Notebooks) {
    this.#clusters = clusters;
    this.#notebooks = notebooks;
    setSentence(this.element, null);
    notebooks.kernelChanged.connect(() => void this.#ask());
  }

  start(): void {
    this.#active = true;
    void this.#ask();
  }

  stop(): void {
    this.#active = false;
  }

  async #ask(): Promise<void> {
    const kernel = this.#notebooks.kernel;
    // While something is missing, it is asked for again after each cell, which may have installed it.
    if (!this.#active || (kernel === this.#kernel && this.element.hidden)) {
      return;
    }
    this.#kernel = kernel;
    // If the server does not answer, the list of clusters says why.
    const found = kernel
      ? await this.#clusters.client.environment(kernel).catch(() => null)
      : null;
    if (kernel === this.#kernel) {
      // That it is not loaded yet is not worth a note: the form for a new cluster loads it.
      const version = this.#clusters.version ?? found?.jupyter_sky;
      const fits = found === null || (found.jupyter_sky !== null && found.jupyter_sky === version);
      setSentence(this.element, fits ? null : found.note);
    }
  }
}
