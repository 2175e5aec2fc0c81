/* The log of a cluster: one rank, several beside each other, or all merged in order; with search. */

import type { LogChunk, LogEntry } from '../api.ts';
import { element, setAttribute, setOptional, setShown } from '../dom.ts';
import { rankRanges, type Translation } from '../words.ts';
import { iconButton, wordButton } from './button.ts';
import { Choice } from './choice.ts';
import { LogColumn } from './log_column.ts';
import { setSentence } from '../sentence.ts';
import type { Tools } from './tools.ts';

/** Most columns side by side: more would be too narrow to read. */
const MOST_COLUMNS = 8;

/** What the log needs from the page. */
export interface LogPage {
  /** Follows the logs of ranks, which are named as in `0,2-3`, until the function that it returns is
      called: no chunk comes after that. */
  follow(ranks: string, onChunk: (chunk: LogChunk, isFirst: boolean) => void): () => void;
  /** Saves the whole logs of ranks, each as a file. */
  download(ranks: readonly number[]): void;
}

/** The ranks that are wanted. */
interface Chosen {
  /** As the page is asked for them. */
  named: string;
  /** Null if these are several, and it is not known which of them there are. */
  ranks: readonly number[] | null;
}

export class LogPane {
  /** The number of last lines of each rank to show first. */
  static readonly lines = 2000;

  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #page: LogPage;
  readonly #which: HTMLInputElement;
  readonly #layout: Choice;
  readonly #query: HTMLInputElement;
  readonly #hits = element('span', 'jsky-log-hits jsky-quiet', { role: 'status' });
  readonly #following: HTMLElement;
  readonly #columns = element('div', 'jsky-log-columns');
  readonly #end = element('div', 'jsky-nothing jsky-quiet', { role: 'status' });
  #shown: { ranks: number[] | null; column: LogColumn }[] = [];
  #known: readonly number[] | null;
  /** Ranks whose output has come. */
  readonly #heard = new Set<number>();
  #at = -1;
  #unfollow: (() => void) | null = null;

  /** Shows one of the `ranks` first, which are null if not known. */
  constructor(tools: Tools, ranks: readonly number[] | null, page: LogPage) {
    const { trans } = tools;
    this.#trans = trans;
    this.#known = ranks;
    this.#page = page;
    this.#which = textField(trans.__('Ranks, like 0,2-3 or all'), 'text');
    this.#which.value = String(ranks?.[0] ?? 0);
    this.#which.addEventListener('change', () => this.follow());
    this.#layout = new Choice(tools, trans.__('How several ranks are shown'), () => this.follow());
    this.#layout.add('merged', trans.__('merged in order'));
    this.#layout.add('beside', trans.__('side by side'));
    this.#query = textField(trans.__('Search the log'), 'search');
    this.#query.placeholder = trans.__('Search');
    this.#query.addEventListener('input', () => this.#search());
    this.#query.addEventListener('keydown', (event) => this.#onSearchKey(event));
    this.#following = wordButton(trans.__('Follow'), false, () => this.#toggleFollowing());
    const save = iconButton(tools, 'download', trans.__('Save the whole log as a file'), () =>
      page.download(this.#toSave)
    );
    this.element = element(
      'div',
      'jsky-log-pane',
      {},
      element(
        'div',
        'jsky-log-tools',
        { role: 'toolbar', 'aria-label': trans.__('Log') },
        element('span', '', { 'aria-hidden': 'true' }, trans.__('Ranks')),
        this.#which,
        this.#layout.element,
        this.#query,
        this.#hits,
        this.#following,
        save
      ),
      this.#columns,
      this.#end
    );
    setSentence(this.#end, null);
  }

  /** Follows the chosen ranks, from their last lines on. */
  follow(): void {
    this.release();
    const chosen = this.#chosen;
    if (!chosen) {
      setSentence(this.#end, this.#wrong());
      this.#unfollow = () => {}; // they may join
      return;
    }
    this.#arrange(chosen);
    this.#heard.clear();
    const waiting = this.#trans.__('waiting for output');
    let hasText = false;
    setSentence(this.#end, waiting);
    this.#unfollow = this.#page.follow(chosen.named, ({ entries, end }, isFirst) => {
      this.#add(entries, isFirst);
      hasText ||= entries.some(({ run }) => run === null);
      setSentence(this.#end, end ?? (hasText ? null : waiting));
    });
  }

  /** Updates the list of ranks: nodes may have joined or left. */
  know(ranks: readonly number[]): void {
    const before = this.#chosen;
    this.#known = ranks;
    const isOther = before?.ranks === null || this.#chosen?.named !== before?.named;
    if (this.#unfollow && isOther) {
      this.follow();
    }
  }

  release(): void {
    this.#unfollow?.();
    this.#unfollow = null;
  }

  /** The ranks in the input; null if they do not exist, as far as is known. */
  get #chosen(): Chosen | null {
    const text = this.#which.value.replace(/\s/g, '');
    if (text !== 'all' && !/^\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*$/.test(text)) {
      return null;
    }
    if (!this.#known) {
      return { named: text, ranks: /^\d+$/.test(text) ? [Number(text)] : null };
    }
    const within = (rank: number) =>
      text.split(',').some((part) => {
        const [from, to = from] = part.split('-').map(Number);
        return from! <= rank && rank <= to!;
      });
    const ranks = text === 'all' ? this.#known : this.#known.filter(within);
    return ranks.length > 0 ? { named: rankRanges([...ranks]).replaceAll(' ', ''), ranks } : null;
  }

  /** The ranks whose logs are saved: where those chosen are not known, those that have shown some. */
  get #toSave(): readonly number[] {
    const chosen = this.#chosen;
    return chosen ? (chosen.ranks ?? [...this.#heard].sort((a, b) => a - b)) : [];
  }

  #wrong(): string {
    return this.#known
      ? this.#trans.__(
          'This cluster has ranks %1: type some of them, like `0,2-3`, or `all`.',
          rankRanges([...this.#known])
        )
      : this.#trans.__('Type ranks, like `0,2-3`, or `all`.');
  }

  /** Makes one column for all ranks, or one for each. */
  #arrange({ named, ranks }: Chosen): void {
    const several = ranks !== null && ranks.length > 1;
    setShown(this.#layout.element, several);
    const beside = several && this.#layout.value === 'beside';
    const groups = beside
      ? ranks.slice(0, MOST_COLUMNS).map((rank) => [rank])
      : [ranks && [...ranks]];
    this.#shown = groups.map((group) => {
      const label =
        group?.length === 1
          ? this.#trans.__('Log of rank %1', group[0])
          : this.#trans.__('Log of ranks %1', group ? rankRanges(group) : named);
      const column = new LogColumn(this.#trans, label, group?.length !== 1, () => this.#showFollowing());
      if (beside) {
        column.element.prepend(
          element('div', 'jsky-log-head', {}, this.#trans.__('rank %1', group![0]))
        );
      }
      return { ranks: group, column };
    });
    this.#columns.replaceChildren(...this.#shown.map(({ column }) => column.element));
    this.#search();
    this.#showFollowing();
  }

  #add(entries: readonly LogEntry[], isFirst: boolean): void {
    entries.forEach(({ rank }) => this.#heard.add(rank));
    for (const { ranks, column } of this.#shown) {
      if (isFirst) {
        column.clear();
        this.#at = -1;
      }
      column.add(ranks?.length === 1 ? entries.filter(({ rank }) => rank === ranks[0]) : entries);
    }
    if (this.#query.value) {
      requestAnimationFrame(() => this.#showHits());
    }
  }

  // Search

  #search(): void {
    this.#at = -1;
    for (const { column } of this.#shown) {
      column.search(this.#query.value);
    }
    this.#showHits();
  }

  #onSearchKey(event: KeyboardEvent): void {
    if (event.key === 'Enter') {
      this.#jump(event.shiftKey ? -1 : 1);
      event.preventDefault();
    } else if (event.key === 'Escape') {
      this.#query.value = '';
      this.#search();
    }
  }

  #jump(step: number): void {
    const hits = this.#hitsThere;
    if (hits.length > 0) {
      const from = this.#at < 0 && step < 0 ? 0 : this.#at;
      this.#at = (from + step + hits.length) % hits.length;
      hits.forEach((hit, at) => hit.classList.toggle('jsky-found-now', at === this.#at));
      this.#setFollowing(false);
      hits[this.#at]!.scrollIntoView({ block: 'center' });
      this.#showHits();
    }
  }

  get #hitsThere(): readonly Element[] {
    return this.#shown.flatMap(({ column }) => column.found);
  }

  #showHits(): void {
    const count = this.#hitsThere.length;
    const words =
      this.#at >= 0
        ? this.#trans.__('%1 of %2', this.#at + 1, count)
        : this.#trans._n('%1 line', '%1 lines', count);
    setOptional(this.#hits, this.#query.value ? words : null);
  }

  // Following

  #setFollowing(following: boolean): void {
    for (const { column } of this.#shown) {
      column.following = following;
    }
    this.#showFollowing();
  }

  #toggleFollowing(): void {
    this.#setFollowing(this.#following.getAttribute('aria-pressed') !== 'true');
  }

  #showFollowing(): void {
    const following = this.#shown.every(({ column }) => column.following);
    setAttribute(this.#following, 'aria-pressed', String(following));
  }
}

function textField(label: string, type: string): HTMLInputElement {
  const attributes = { type, 'aria-label': label, title: label };
  return element('input', 'jp-mod-styled', attributes) as HTMLInputElement;
}
