/* Says what the present notebook's kernel lacks of jupyter_sky, and what to type. */

import { element } from '../dom.ts';
import { setSentence } from '../sidebar/sentence.ts';
import type { IClusters } from './clusters.ts';
import type { Notebooks } from './notebooks.ts';

export class EnvironmentNote {
  readonly element = element('div', 'jsky-notice', { role: 'status' });
  readonly #clusters: IClusters;
  readonly #notebooks: Notebooks;
  #looking = false;
  #kernel: string | null = null;

  constructor(clusters: IClusters, notebooks: Notebooks) {
    this.#clusters = clusters;
    this.#notebooks = notebooks;
    setSentence(this.element, null);
    notebooks.kernelChanged.connect(() => void this.#ask());
  }

  look(): void {
    this.#looking = true;
    void this.#ask();
  }

  leave(): void {
    this.#looking = false;
  }

  async #ask(): Promise<void> {
    const kernel = this.#notebooks.kernel;
    // As long as something is missing, each cell may have brought it.
    if (!this.#looking || (kernel === this.#kernel && this.element.hidden)) {
      return;
    }
    this.#kernel = kernel;
    // Where the server cannot say, the list of clusters says why.
    const found = kernel
      ? await this.#clusters.client.environment(kernel).catch(() => null)
      : null;
    if (kernel === this.#kernel) {
      // That it is not loaded yet needs no word: who starts a cluster from here loads it.
      const version = this.#clusters.version ?? found?.jupyter_sky;
      const fits = found === null || (found.jupyter_sky !== null && found.jupyter_sky === version);
      setSentence(this.element, fits ? null : found.note);
    }
  }
}
