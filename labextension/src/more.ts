/* What a user can ask of a cluster beside its ranks: the last ten minutes, what its names stand for, and
   what the ranks spend their time on. Nothing is asked, and nothing drawn, before a button is pressed. */

import type { Ask } from './action.ts';
import { breakable, element, setAttribute, setOptional, setShown, setText } from './dom.ts';
import { HistoryTable } from './history.ts';
import { Usage } from './usage.ts';
import { pictureOf } from './picture.ts';
import { setSentence } from './sentence.ts';
import type { Snapshot, Variables } from './snapshot.ts';
import { plain, plainLines } from './text.ts';
import type { Translation } from './words.ts';

/** Milliseconds between two requests for usage; nodes measure it as often. */
const EVERY = 5000;

export class More {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #history: Part;
  readonly #variables: Part;
  readonly #profile: Part;
  readonly #table: HistoryTable;
  #ask: Ask | null = null;
  #snapshot: Snapshot | null = null;
  #usage: Usage;
  #timer: ReturnType<typeof setInterval> | undefined;
  #isAsking = false;

  /** `usage` outlives the view, which a page recreates from time to time. */
  constructor(trans: Translation, usage: Usage) {
    this.#trans = trans;
    this.#usage = usage;
    this.#table = new HistoryTable(trans);
    this.#history = new Part(trans.__('History'), trans.__('Show the last ten minutes'), () => {
      this.#usage.isWanted = this.#history.isOpen;
      this.#keepAsking();
    });
    this.#variables = new Part(trans.__('Variables'), trans.__('Show what names stand for on the ranks'), () =>
      this.#showVariables()
    );
    this.#profile = new Part(trans.__('Profile'), trans.__('Look at what the ranks do for ten seconds'), () =>
      this.#showProfile()
    );
    const parts = [this.#history, this.#variables, this.#profile];
    this.element = element(
      'div',
      'jsky-more',
      {},
      element('div', 'jsky-more-buttons', {}, ...parts.map(({ button }) => button)),
      ...parts.map((part) => part.element)
    );
    setShown(this.element, false);
    if (usage.isWanted) {
      this.#history.open(true);
    }
  }

  /** Shows the possible questions; without `ask`, nobody can answer. */
  show(snapshot: Snapshot, ask: Ask | null): void {
    this.#snapshot = snapshot;
    this.#ask = ask;
    setShown(this.element, ask !== null);
    setShown(this.#profile.button, snapshot.run?.state === 'running' || this.#profile.isOpen);
    this.#keepAsking();
  }

  /** Stops asking, since nobody sees it. */
  pause(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#ask = null;
  }

  #keepAsking(): void {
    const isWanted = this.#ask !== null && this.#history.isOpen;
    if (!isWanted) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    } else if (this.#timer === undefined) {
      this.#timer = setInterval(() => void this.#askForHistory(), EVERY);
      void this.#askForHistory();
    } else {
      this.#drawHistory();
    }
  }

  async #askForHistory(): Promise<void> {
    if (this.#isAsking || !this.#ask || document.hidden) {
      return;
    }
    const usage = this.#usage;
    this.#isAsking = true;
    if (usage.at === 0) {
      this.#history.say(this.#trans.__('Asking the kernel…'));
    }
    try {
      usage.add(await this.#ask.history(usage.at));
      this.#history.complain(null);
      this.#history.put(this.#table.element);
    } catch (trouble) {
      this.#history.complain(trouble as Error);
    } finally {
      this.#isAsking = false;
    }
    this.#drawHistory();
  }

  #drawHistory(): void {
    if (this.#snapshot && this.#history.isOpen) {
      this.#table.show(this.#usage, this.#snapshot.ranks);
    }
  }

  #showVariables(): void {
    const part = this.#variables;
    const asking = this.#trans.__('Asking the ranks…');
    void part.fill(asking, this.#ask && (() => this.#ask!.variables()), (found) => {
      const again = element('button', 'jsky-small-button', { type: 'button' });
      setText(again, this.#trans.__('Ask again'));
      again.addEventListener('click', () => {
        part.button.focus();
        this.#showVariables();
      });
      return [...variables(this.#trans, found), again];
    });
  }

  #showProfile(): void {
    const part = this.#profile;
    const looking = this.#trans.__('Looking at what the ranks do for ten seconds…');
    void part.fill(looking, this.#ask && (() => this.#ask!.profile()), (found) => [
      element('div', 'jsky-profile', {}, pictureOf(found.html))
    ]);
  }
}

/** A button and what it shows below. */
class Part {
  readonly button: HTMLElement;
  readonly element: HTMLElement;
  readonly #note = element('div', 'jsky-quiet', { role: 'status' });
  readonly #content = element('div', '');
  #asked = 0;
  isOpen = false;

  constructor(label: string, title: string, changed: () => void) {
    this.button = element('button', 'jsky-small-button', { type: 'button', title }, label);
    this.element = element('div', 'jsky-more-part', {}, this.#note, this.#content);
    setAttribute(this.button, 'aria-expanded', 'false');
    setShown(this.element, false);
    setShown(this.#note, false);
    this.button.addEventListener('click', () => {
      this.open(!this.isOpen);
      changed();
    });
  }

  open(isOpen: boolean): void {
    this.isOpen = isOpen;
    setAttribute(this.button, 'aria-expanded', String(isOpen));
    setShown(this.element, isOpen);
    if (!isOpen) {
      this.#asked += 1;
      this.put();
      this.say(null);
    }
  }

  /** Shows elements in place of those before. */
  put(...content: HTMLElement[]): void {
    if (content.length !== this.#content.children.length || content[0] !== this.#content.firstChild) {
      this.#content.replaceChildren(...content);
    }
  }

  /** Shows an error, or removes it if null. */
  complain(trouble: Error | null): void {
    this.say(trouble && plainLines(trouble.message));
  }

  say(note: string | null): void {
    setOptional(this.#note, note);
  }

  /** Shows the answer to a question, unless it is closed or asked again before. */
  async fill<Answer>(
    note: string,
    ask: (() => Promise<Answer>) | null,
    draw: (answer: Answer) => HTMLElement[]
  ): Promise<void> {
    if (!this.isOpen || !ask) {
      return;
    }
    const asked = (this.#asked += 1);
    this.say(note);
    try {
      const answer = await ask();
      if (asked === this.#asked) {
        this.complain(null);
        this.put(...draw(answer));
      }
    } catch (trouble) {
      if (asked === this.#asked) {
        this.complain(trouble as Error);
      }
    }
  }
}

/** The variables of the ranks, and what there is to say: rows that differ are marked, for screen readers,
    too. */
function variables(trans: Translation, { head, rows, notes }: Variables): HTMLElement[] {
  const headings = head.map((text) => element('th', '', { scope: 'col' }, plain(text)));
  const lines = rows.map(({ cells, differs }) => {
    const [name = '', ...others] = cells.map(plain);
    const row = element('tr', '', {}, element('th', '', { scope: 'row' }, ...breakable(name)));
    row.append(...others.map((text) => element('td', '', {}, ...breakable(text))));
    if (differs) {
      setAttribute(row, 'data-differs', '');
      row.lastElementChild!.prepend(element('span', 'jsky-differs', {}, trans.__('differs')), ' ');
    }
    return row;
  });
  const said = rows.length > 0 ? notes : [trans.__('The ranks have no variables yet.'), ...notes];
  const small = said.map((note) => {
    const line = element('div', 'jsky-quiet');
    setSentence(line, note);
    return line;
  });
  const table = element(
    'table',
    'jsky-variables',
    { 'aria-label': trans.__('Variables of the ranks') },
    element('thead', '', {}, element('tr', '', {}, ...headings)),
    element('tbody', '', {}, ...lines)
  );
  const place = element('div', 'jsky-variables-place', {}, table);
  setShown(place, rows.length > 0);
  return [place, ...small];
}
