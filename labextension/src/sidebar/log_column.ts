/* A column of a log: lines of one rank, or of several merged in order, below the title of their run. */

import type { LogEntry } from '../api.ts';
import { element, setAttribute, setShown, setText } from '../dom.ts';
import { linesOf, partsOf, pieces, plain, rowAfter } from '../text.ts';
import type { Translation } from '../words.ts';

/** Most lines to keep. */
const MOST = 5000;

/** Most characters of an unfinished line to keep. */
const LONGEST = 20_000;

/** Most lines of a stream that its cursor can go back to. */
const MOST_ROWS = 100;

interface Line {
  rank: number;
  stream: string;
  text: string;
  element: HTMLElement | null;
}

/** The last lines of a stream, and which of them its cursor is in; one below them is not yet there. */
interface Cursor {
  lines: Line[];
  at: number;
}

export class LogColumn {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #labelled: boolean;
  readonly #text: HTMLElement;
  readonly #cursors = new Map<string, Cursor>();
  readonly #changed = new Set<Line>();
  readonly #added: (Line | HTMLElement)[] = [];
  #run: string | null = null;
  #heading: HTMLElement | null = null;
  #query = '';
  #drawing = false;
  #following = true;

  /** `label` is the column's name; lines begin with their rank if `labelled`. */
  constructor(trans: Translation, label: string, labelled: boolean, onScroll = () => {}) {
    this.#trans = trans;
    this.#labelled = labelled;
    const attributes = { role: 'log', 'aria-live': 'off', tabindex: '0', 'aria-label': label };
    this.#text = element('div', 'jsky-text', attributes);
    this.#text.addEventListener('scroll', () => {
      const { scrollTop, clientHeight, scrollHeight } = this.#text;
      this.#following = scrollTop + clientHeight >= scrollHeight - 4;
      onScroll();
    });
    this.element = element('div', 'jsky-log-column', {}, this.#text);
  }

  /** Adds output of ranks; it is drawn with the next frame. */
  add(entries: readonly LogEntry[]): void {
    for (const entry of entries) {
      if (entry.run === null) {
        this.#write(entry);
      } else if (entry.run !== this.#run) {
        // The heading comes with the first line, since many runs print nothing.
        this.#run = entry.run;
        this.#heading = this.#headingOf(entry);
      }
    }
    this.#drawSoon();
  }

  clear(): void {
    this.#text.replaceChildren();
    this.#cursors.clear();
    this.#changed.clear();
    this.#added.length = 0;
    this.#run = this.#heading = null;
  }

  /** Whether it stays scrolled to the end. */
  get following(): boolean {
    return this.#following;
  }

  set following(following: boolean) {
    this.#following = following;
    if (following) {
      this.#text.scrollTop = this.#text.scrollHeight;
    }
  }

  /** Marks the lines that contain a text. */
  search(query: string): void {
    this.#query = query.toLowerCase();
    for (const line of this.#text.children) {
      this.#mark(line);
    }
  }

  /** The lines that `search` has found. */
  get found(): readonly Element[] {
    return [...this.#text.querySelectorAll('.jsky-found')];
  }

  #write({ rank, stream, text }: LogEntry): void {
    const key = `${rank} ${stream}`;
    const cursor = this.#cursors.get(key) ?? { lines: [], at: 0 };
    this.#cursors.set(key, cursor);
    for (const part of partsOf(text)) {
      const line = this.#lineAt(cursor, rank, stream);
      const next = rowAfter(part, cursor.at, cursor.lines.length);
      if (next === null) {
        this.#extend(line, part);
      } else {
        cursor.at = next;
        const overwritten = cursor.lines[next];
        if (overwritten) {
          this.#extend(overwritten, '\r');
        }
      }
    }
  }

  /** Returns the line that a cursor is in, or begins it. */
  #lineAt(cursor: Cursor, rank: number, stream: string): Line {
    const there = cursor.lines[cursor.at];
    if (there) {
      return there;
    }
    const line = { rank, stream, text: '', element: null };
    cursor.lines.push(line);
    if (cursor.lines.length > MOST_ROWS) {
      cursor.lines.shift();
    }
    cursor.at = cursor.lines.length - 1;
    if (this.#heading) {
      this.#added.push(this.#heading);
      this.#heading = null;
    }
    this.#added.push(line);
    return line;
  }

  #extend(line: Line, text: string): void {
    line.text = shortened(line.text + text);
    if (line.element) {
      this.#changed.add(line);
    }
    // A page in the background draws nothing, for hours perhaps.
    if (this.#added.length > 2 * MOST) {
      this.#added.splice(0, this.#added.length - MOST);
    }
  }

  #drawSoon(): void {
    if (!this.#drawing) {
      this.#drawing = true;
      requestAnimationFrame(() => {
        this.#drawing = false;
        this.#draw();
      });
    }
  }

  #draw(): void {
    const added = this.#added.splice(0).slice(-MOST);
    const drawn = added.map((each) => ('rank' in each ? (each.element = this.#elementOf(each)) : each));
    drawn.forEach((node) => this.#mark(node));
    this.#text.append(...drawn);
    for (const line of this.#changed) {
      if (line.element) {
        this.#fill(line.element, line);
        this.#mark(line.element);
      }
    }
    this.#changed.clear();
    while (this.#text.childElementCount > MOST) {
      this.#text.firstElementChild!.remove();
    }
    if (this.#following) {
      this.#text.scrollTop = this.#text.scrollHeight;
    }
  }

  #elementOf(line: Line): HTMLElement {
    const node = element('div', 'jsky-text-line');
    setAttribute(node, 'data-stream', line.stream);
    this.#fill(node, line);
    return node;
  }

  #fill(node: HTMLElement, { rank, text }: Line): void {
    const [shown = ''] = linesOf(text);
    const label = this.#labelled ? [element('span', 'jsky-log-rank', {}, `${rank}`)] : [];
    node.replaceChildren(
      ...label,
      ...pieces(shown).map(({ text, style }) => (style ? element('span', style, {}, text) : text))
    );
  }

  #mark(node: Element): void {
    const found = this.#query !== '' && node.textContent!.toLowerCase().includes(this.#query);
    node.classList.toggle('jsky-found', found);
    node.classList.remove('jsky-found-now');
  }

  #headingOf({ title, time }: LogEntry): HTMLElement {
    const when = new Date(time * 1000);
    const name = element('span', 'jsky-log-title');
    setText(name, plain(title) || this.#trans.__('a run'));
    const clock = element('time', 'jsky-quiet', { datetime: when.toISOString() });
    setText(clock, when.toLocaleTimeString());
    setShown(clock, time > 0);
    return element('div', 'jsky-log-run', {}, name, clock);
  }
}

/** Returns a line without overwritten parts, if it is long. */
function shortened(text: string): string {
  if (text.length <= LONGEST) {
    return text;
  }
  const last = text.lastIndexOf('\r', text.length - 2);
  return (last > 0 ? text.slice(last) : text).slice(0, LONGEST);
}
