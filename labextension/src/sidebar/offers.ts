/* What a new cluster can be made of, with prices: a list in which one is chosen. */

import type { Offer } from '../api.ts';
import { element, setShown } from '../dom.ts';
import { plain } from '../text.ts';
import { money, type Translation } from '../words.ts';

/** Most offers to show: more do not help in choosing. */
const MOST = 30;

export class OfferList {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #changed: () => void;
  #offers: Offer[] = [];
  #chosen = 0;

  constructor(trans: Translation, changed: () => void) {
    this.#trans = trans;
    this.#changed = changed;
    const label = trans.__('Available nodes');
    this.element = element('div', 'jsky-offers', { role: 'radiogroup', 'aria-label': label });
    this.element.addEventListener('change', ({ target }) => {
      this.#chosen = Number((target as HTMLInputElement).value);
      this.#changed();
    });
    setShown(this.element, false);
  }

  get chosen(): Offer | null {
    return this.#offers[this.#chosen] ?? null;
  }

  show(offers: readonly Offer[]): void {
    // The chosen kind stays chosen, even for another number of nodes.
    const before = this.chosen;
    this.#offers = offers.slice(0, MOST);
    this.#chosen = placeOf(before, this.#offers);
    this.element.replaceChildren(...this.#offers.map((offer, at) => this.#row(offer, at)));
    setShown(this.element, this.#offers.length > 0);
  }

  #row({ provider, description, price }: Offer, at: number): HTMLElement {
    const attributes = { type: 'radio', name: 'jsky-offer', value: String(at) };
    const radio = element('input', '', attributes) as HTMLInputElement;
    radio.checked = at === this.#chosen;
    const cost = price === null ? '' : ` · ${this.#trans.__('%1 an hour', money(price))}`;
    return element(
      'label',
      'jsky-offer',
      {},
      radio,
      element('span', 'jsky-offer-what', {}, plain(description)),
      element('span', 'jsky-offer-cost jsky-quiet', {}, `${plain(provider)}${cost}`)
    );
  }
}

/** The index of the same kind of nodes among offers, or else 0. */
function placeOf(before: Offer | null, offers: readonly Offer[]): number {
  // A description may say what is free, which changes; a line says what is requested.
  const kind = ({ line }: Offer) => line.replace(/--nodes \S+/, '');
  const same = offers.filter(({ provider }) => provider === before?.provider);
  const found =
    same.find(({ description }) => description === before!.description) ??
    same.find((offer) => kind(offer) === kind(before!));
  return found ? offers.indexOf(found) : 0;
}
