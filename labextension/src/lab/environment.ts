/* Says what the present notebook's kernel lacks of jupyter_sky, and what to type. */

import { element } from '../dom.ts';
import { setSentence } from '../sidebar/sentence.ts';
import type { Client } from './client.ts';
import type { Notebooks } from './notebooks.ts';

export class EnvironmentNote {
  readonly element = element('div', 'jsky-notice', { role: 'status' });
  readonly #client: Client;
  readonly #notebooks: Notebooks;
  #looking = false;
  #kernel: string | null = null;

  constructor(client: Client, notebooks: Notebooks) {
    this.#client = client;
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
    if (!this.#looking || kernel === this.#kernel) {
      return;
    }
    this.#kernel = kernel;
    // Where the server cannot say, the list of clusters says why.
    const found = kernel ? await this.#client.environment(kernel).catch(() => null) : null;
    if (kernel === this.#kernel) {
      setSentence(this.element, found?.note ?? null);
    }
  }
}
