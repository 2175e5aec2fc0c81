/* What a new cluster can be made of, with prices: a list in which one is chosen. */

import type { Offer } from '../api.ts';
import { element, setShown } from '../dom.ts';
import { plain } from '../text.ts';
import { money, type Translation } from '../words.ts';

/** Offers that are shown, at most: more are no help in choosing. */
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
    // The kind that was chosen stays chosen, for another number of nodes too.
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

/** Where the same kind of nodes is among offers, else 0. */
function placeOf(before: Offer | null, offers: readonly Offer[]): number {
  // In a description it may be said what is free, which changes; in a line what is asked for.
  const kind = ({ line }: Offer) => line.replace(/--nodes \S+/, '');
  const same = offers.filter(({ provider }) => provider === before?.provider);
  const found =
    same.find(({ description }) => description === before!.description) ??
    same.find((offer) => kind(offer) === kind(before!));
  return found ? offers.indexOf(found) : 0;
}
