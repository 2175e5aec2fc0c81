/* All clusters, one card each; only elements that have changed are updated. */

import type { Entry } from '../api.ts';
import { element, setAttribute, setShown } from '../dom.ts';
import { Card, type Page } from './card.ts';
import { setSentence } from '../sentence.ts';
import type { Tools } from './tools.ts';

/** More cards than this have two lines each, until they are opened. */
const ROOMY = 8;

export class ClusterList {
  readonly element: HTMLElement;
  readonly #tools: Tools;
  readonly #page: Page;
  readonly #cards = new Map<string, Card>();
  readonly #notice = element('div', 'jsky-notice', { role: 'status' });
  readonly #empty: HTMLElement;
  readonly #list: HTMLElement;

  constructor(tools: Tools, page: Page) {
    const { trans } = tools;
    this.#tools = tools;
    this.#page = page;
    const hint = element('p', 'jsky-quiet');
    setSentence(
      hint,
      trans.__('Type %1 above a cell and run it, or start one with +.', '`%%sky --nodes 2`')
    );
    const none = element('p', '', {}, trans.__('No cluster is running.'));
    this.#empty = element('div', 'jsky-empty', {}, tools.icon('sky'), none, hint);
    this.#list = element('ul', 'jsky-cards', { 'aria-label': trans.__('Clusters') });
    this.element = element('div', 'jsky-list', {}, this.#notice, this.#empty, this.#list);
    setSentence(this.#notice, null);
    setShown(this.#empty, false);
  }

  /** Shows clusters in their state `now`; `trouble` says why some may be missing. */
  show(entries: readonly Entry[], trouble: string | null, now: number): void {
    setSentence(this.#notice, trouble);
    setShown(this.#empty, entries.length === 0 && !trouble);
    setAttribute(this.#list, 'data-compact', entries.length > ROOMY ? '' : null);
    const there = new Set(entries.map(({ id }) => id));
    for (const [id, card] of this.#cards) {
      if (!there.has(id)) {
        card.release();
        card.element.remove();
        this.#cards.delete(id);
      }
    }
    entries.forEach((entry, at) => {
      const card = this.#cardOf(entry);
      card.show(entry, now);
      if (this.#list.children[at] !== card.element) {
        this.#list.insertBefore(card.element, this.#list.children[at] ?? null);
      }
    });
  }

  /** Opens a cluster's card and brings it into view. */
  reveal(id: string): void {
    const card = this.#cards.get(id);
    if (card) {
      card.open = true;
      card.element.scrollIntoView({ block: 'nearest' });
    }
  }

  /** Stops live output while the sidebar is not visible. */
  pause(): void {
    for (const card of this.#cards.values()) {
      card.release();
    }
  }

  #cardOf(entry: Entry): Card {
    let card = this.#cards.get(entry.id);
    if (!card) {
      card = new Card(this.#tools, this.#page, entry);
      this.#cards.set(entry.id, card);
    }
    return card;
  }
}
