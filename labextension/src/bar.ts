/* A bar with its figure: how much it is, and before that perhaps of what. */

import { element, setFacts, setText, type Fact } from './dom.ts';

export class Bar {
  readonly element: HTMLElement;
  readonly #fill = element('span', 'jsky-fill');
  readonly #label = element('span', 'jsky-label');
  readonly #amount = element('span', 'jsky-amount');

  constructor(name: string) {
    const bar = element('span', 'jsky-bar', {}, this.#fill);
    const figure = element('span', 'jsky-figure', {}, this.#label, this.#amount);
    this.element = element('span', `jsky-meter ${name}`, {}, bar, figure);
  }

  show(part: number | null, amounts: Fact[], label = ''): void {
    const filled = String(Math.min(Math.max(part ?? 0, 0), 1).toFixed(2));
    if (this.#fill.style.getPropertyValue('--jsky-part') !== filled) {
      this.#fill.style.setProperty('--jsky-part', filled);
    }
    setText(this.#label, label);
    setFacts(this.#amount, amounts, Boolean(label));
  }
}
