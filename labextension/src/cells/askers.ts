/* Who has asked a kernel for something, as its messages tell it: a kernel names in them the session of
   messages that asked, and every page has one of its own for each of its notebooks. */

const KEY = 'jupyter-sky:sessions';

/** The sessions of this tab's notebooks, also of those that were closed, and of its page before that
    was loaded again. */
export class OwnSessions {
  readonly #all: Set<string>;

  constructor(tab: Storage, page: EventTarget) {
    this.#all = new Set(JSON.parse(tab.getItem(KEY) ?? '[]') as string[]);
    // Only from one page to the next: a tab that is duplicated has sessions of its own.
    tab.removeItem(KEY);
    page.addEventListener('pagehide', () => tab.setItem(KEY, JSON.stringify([...this.#all])));
    page.addEventListener('pageshow', () => tab.removeItem(KEY));
  }

  add(session: string): void {
    this.#all.add(session);
  }

  has(session: string): boolean {
    return this.#all.has(session);
  }
}
