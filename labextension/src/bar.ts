/* A bar with its figure. */

import { element, setText } from './dom.ts';

export class Bar {
  readonly element: HTMLElement;
  readonly #fill = element('span', 'jsky-fill');
  readonly #figure = element('span', 'jsky-figure');

  constructor(name: string) {
    const bar = element('span', 'jsky-bar', {}, this.#fill);
    this.element = element('span', `jsky-meter ${name}`, {}, bar, this.#figure);
  }

  show(part: number | null, figure: string): void {
    const filled = String(Math.min(Math.max(part ?? 0, 0), 1).toFixed(2));
    if (this.#fill.style.getPropertyValue('--jsky-part') !== filled) {
      this.#fill.style.setProperty('--jsky-part', filled);
    }
    setText(this.#figure, figure);
  }
}
