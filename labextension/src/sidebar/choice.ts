/* A choice of names, to which names can be added later. */

import { element } from '../dom.ts';
import { plain } from '../text.ts';
import type { Tools } from './tools.ts';

export class Choice {
  readonly element: HTMLElement;
  readonly #select: HTMLSelectElement;

  /** `label` is its name for screen readers. */
  constructor({ icon }: Tools, label: string, changed: () => void) {
    const attributes = { 'aria-label': label };
    this.#select = element('select', 'jp-mod-styled', attributes) as HTMLSelectElement;
    this.#select.addEventListener('change', changed);
    this.element = element('span', 'jsky-choice', {}, this.#select, icon('choose'));
  }

  get value(): string {
    return this.#select.value;
  }

  add(value: string, text: string): void {
    const option = element('option', '', {}, text) as HTMLOptionElement;
    option.value = value;
    this.#select.append(option);
  }

  /** Adds names that are not there yet. */
  offer(names: readonly string[]): void {
    const known = new Set([...this.#select.options].map(({ value }) => value));
    for (const name of new Set(names)) {
      if (!known.has(name)) {
        this.add(name, plain(name));
      }
    }
  }

  choose(name: string): void {
    this.offer([name]);
    this.#select.value = name;
  }
}
