/* The live output of the selected rank. It follows the end until the user scrolls up to read. */

import { element, setAttribute, setOptional, setShown, setText } from './dom.ts';
import type { Place } from './action.ts';
import type { Output } from './snapshot.ts';
import { linesOf, pieces, placeIn, plain } from './text.ts';
import type { Translation } from './words.ts';

/** Lines shown by default; earlier ones are in the rank's log. */
const MOST = 200;

export class OutputPane {
  readonly element: HTMLElement;
  /** Beside the title, for elements of the page around it. */
  readonly tools = element('span', 'jsky-output-tools');
  readonly #trans: Translation;
  readonly #most: number;
  readonly #go: ((place: Place) => void) | null;
  readonly #heading = element('span', 'jsky-output-title');
  readonly #note = element('span', 'jsky-quiet');
  readonly #latest: HTMLElement;
  readonly #text = element('div', 'jsky-text', {
    role: 'log',
    'aria-live': 'off',
    tabindex: '0'
  });
  #rank: number | null = null;
  #shown: string | null = null;
  #lines: string[] = [];
  #following = true;

  constructor(trans: Translation, most = MOST, go: ((place: Place) => void) | null = null) {
    this.#trans = trans;
    this.#most = most;
    this.#go = go;
    const attributes = { type: 'button' };
    this.#latest = element('button', 'jsky-latest', attributes, trans.__('Latest ↓'));
    this.#latest.addEventListener('click', () => this.#follow());
    this.#text.addEventListener('scroll', () => {
      const { scrollTop, clientHeight, scrollHeight } = this.#text;
      this.#following = scrollTop + clientHeight >= scrollHeight - 4;
      setShown(this.#latest, !this.#following);
    });
    setShown(this.#latest, false);
    this.element = element(
      'div',
      'jsky-output',
      {},
      element('div', 'jsky-output-head', {}, this.#heading, this.tools, this.#note, this.#latest),
      this.#text
    );
  }

  /** Shows the output of `rank`; while `output` is another rank's, its last `line` is shown. A
      `note` takes the place of both. Of a run that `isOver` no more is expected. */
  show(
    rank: number,
    output: Output,
    line: string,
    isOver: boolean,
    note: string | null = null
  ): void {
    const pending = output.rank !== rank && note === null;
    const text = note !== null ? '' : pending ? plain(line) : output.text;
    if (rank !== this.#rank) {
      this.#rank = rank;
      this.#shown = null;
      this.#lines = [];
      this.#text.replaceChildren();
      const title =
        rank === 0
          ? this.#trans.__('Output of rank 0, the head')
          : this.#trans.__('Output of rank %1', rank);
      setText(this.#heading, title);
      setAttribute(this.#text, 'aria-label', title);
      this.#follow();
    }
    setOptional(this.#note, note ?? this.#noteFor(pending, text, isOver));
    if (text !== this.#shown) {
      this.#shown = text;
      this.#write(text ? linesOf(text.replace(/\n$/, '')).slice(-this.#most) : []);
    }
  }

  #noteFor(pending: boolean, text: string, isOver: boolean): string | null {
    if (pending) {
      return this.#trans.__('only its last line, while the kernel is busy');
    }
    if (text) {
      return null;
    }
    return isOver ? this.#trans.__('nothing was printed') : this.#trans.__('nothing printed yet');
  }

  /** Shows `lines`: usually some are added, and as many are removed at the top. */
  #write(lines: string[]): void {
    const gone = dropped(this.#lines, lines);
    for (let count = 0; count < gone; count++) {
      this.#text.firstChild?.remove();
    }
    const old = this.#lines.slice(gone);
    const added: HTMLElement[] = [];
    lines.forEach((line, at) => {
      if (at >= old.length) {
        added.push(this.#fill(element('div', 'jsky-text-line'), line));
      } else if (line !== old[at]) {
        this.#fill(this.#text.children[at]!, line);
      }
    });
    if (added.length > 0) {
      this.#text.append(...added);
    }
    this.#lines = lines;
    if (this.#following) {
      this.#text.scrollTop = this.#text.scrollHeight;
    }
  }

  /** Shows a line; if it names a line of code, it links to it. */
  #fill(node: Element, line: string): HTMLElement {
    const shown = pieces(line).map(({ text, style }) =>
      style ? element('span', style, {}, text) : text
    );
    const place = this.#go && placeIn(plain(line));
    if (place) {
      const link = element('button', 'jsky-code-link', { type: 'button' });
      link.append(...shown);
      link.addEventListener('click', () => this.#go?.(place));
      node.replaceChildren(link);
    } else {
      node.replaceChildren(...shown);
    }
    return node as HTMLElement;
  }

  #follow(): void {
    this.#following = true;
    setShown(this.#latest, false);
    this.#text.scrollTop = this.#text.scrollHeight;
  }
}

/** Returns how many lines at the top of `before` are no longer in `after`. */
function dropped(before: string[], after: string[]): number {
  // The last line may have been unfinished, so it may differ.
  for (let gone = 0; gone < before.length - 1; gone++) {
    let at = gone;
    while (at < before.length - 1 && before[at] === after[at - gone]) {
      at++;
    }
    if (at === before.length - 1 && before.length - gone <= after.length) {
      return gone;
    }
  }
  return before.length;
}
