/* Shows what the current notebook's kernel lacks of jupyter_sky, and what to type or to press. */

import { element, setShown } from '../dom.ts';
import { wordButton } from '../sidebar/button.ts';
import { setSentence } from '../sentence.ts';
import type { Translation } from '../words.ts';
import type { IClusters } from './clusters.ts';
import type { Notebooks } from './notebooks.ts';

export class EnvironmentNote {
  readonly element: HTMLElement;
  readonly #missing = element('div', 'jsky-notice', { role: 'status' });
  readonly #unloaded: HTMLElement;
  readonly #what = element('div', 'jsky-quiet', { role: 'status' });
  readonly #clusters: IClusters;
  readonly #notebooks: Notebooks;
  #active = false;
  #kernel: string | null = null;

  constructor(clusters: IClusters, notebooks: Notebooks, trans: Translation) {
    this.#clusters = clusters;
    this.#notebooks = notebooks;
    const load = wordButton(trans.__('Load it'), false, () => void notebooks.load(false));
    this.#unloaded = element('div', 'jsky-unloaded', {}, this.#what, load);
    this.element = element('div', '', {}, this.#missing, this.#unloaded);
    this.#show(null, null);
    notebooks.kernelChanged.connect(() => void this.#ask());
    notebooks.kernelRestarted.connect(() => {
      // It has the same id, and nothing loaded any more.
      this.#kernel = null;
    });
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
    // While something is missing, ask again after each cell, which may have installed it.
    const isComplete = this.#missing.hidden && this.#unloaded.hidden;
    if (!this.#active || (kernel === this.#kernel && isComplete)) {
      return;
    }
    this.#kernel = kernel;
    // If the server does not answer, the list of clusters says why.
    const found = kernel
      ? await this.#clusters.client.environment(kernel).catch(() => null)
      : null;
    if (kernel === this.#kernel) {
      const version = this.#clusters.version ?? found?.jupyter_sky;
      const fits = found === null || (found.jupyter_sky !== null && found.jupyter_sky === version);
      this.#show(fits ? null : found.note, fits && found && !found.loaded ? found.note : null);
    }
  }

  #show(missing: string | null, unloaded: string | null): void {
    setSentence(this.#missing, missing);
    setSentence(this.#what, unloaded);
    setShown(this.#unloaded, unloaded !== null);
  }
}
