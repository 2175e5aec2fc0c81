/* The ranks, grouped by node: a list in which one is selected. */

import { element, setAttribute, setShown, setText } from './dom.ts';
import { RankRow } from './rank.ts';
import type { Node, Rank, Run } from './snapshot.ts';
import { plain } from './text.ts';
import type { Translation } from './words.ts';

/** More ranks than this are shown in a grid, one card per node, instead of lines. */
const ROOMY = 16;

interface Group {
  title: HTMLElement;
  where: HTMLElement;
}

export class RankList {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #isCell: boolean;
  readonly #rows = new Map<number, RankRow>();
  readonly #groups = new Map<number, Group>();
  readonly #headings: HTMLElement;
  #shape = '';

  constructor(trans: Translation, isCell: boolean, choose: (rank: number) => void) {
    this.#trans = trans;
    this.#isCell = isCell;
    this.element = element('div', 'jsky-ranks', {
      role: 'listbox',
      'aria-label': trans.__('Ranks: choose one to see its output')
    });
    this.#headings = headings(trans);
    this.element.addEventListener('click', ({ target }) => {
      const rank = rankOf(target);
      if (rank !== null) {
        this.#focus(rank);
        choose(rank);
      }
    });
    this.element.addEventListener('keydown', (event) => {
      const rank = rankOf(event.target);
      if (rank === null || event.altKey || event.ctrlKey || event.metaKey) {
        return;
      }
      if (event.key === 'Enter' || event.key === ' ') {
        choose(rank);
      } else if (!this.#move(rank, event.key)) {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** Shows the ranks; of a run that is lost, nobody knows whether they still run. */
  show(
    nodes: Node[],
    ranks: Rank[],
    selected: number | null,
    run: Run | null,
    isLost: boolean
  ): void {
    this.#arrange(ranks);
    setShown(this.element, ranks.length > 0);
    // The present usage of a device says nothing about a finished run.
    const runs =
      !isLost && (run === null || run.state === 'running' || run.state === 'waiting');
    const isPast = this.#isCell && !runs;
    setAttribute(this.element, 'data-over', isPast ? '' : null);
    const places = new Map(nodes.map((node) => [node.node, node]));
    // A single address is not informative: all are processes on this machine.
    const isOne = new Set(nodes.map(({ addr }) => addr)).size < 2;
    setAttribute(this.element, 'data-plain', isOne && ranks.length === this.#groups.size ? '' : null);
    for (const [number, { title, where }] of this.#groups) {
      setText(title, this.#trans.__('node %1', number));
      const addr = isOne ? '' : plain(places.get(number)?.addr ?? '');
      setText(where, addr);
      setAttribute(where, 'title', addr || null);
    }
    const timed = ranks.some((rank) => rank.seconds !== null);
    setAttribute(this.element, 'data-timed', timed ? '' : null);
    const measured = ranks.some((rank) => rank.utilisation !== null || rank.memory !== null);
    setAttribute(this.element, 'data-measured', measured ? '' : null);
    const state = { isLost, waits: run?.state === 'waiting', isPast };
    for (const rank of ranks) {
      const gpu = places.get(rank.node)?.gpu ?? null;
      this.#rows.get(rank.rank)?.show(rank, gpu, rank.rank === selected, state);
    }
    if (![...this.#rows.values()].some((row) => row.element.tabIndex === 0)) {
      this.#reachable(selected !== null && this.#rows.has(selected) ? selected : (ranks[0]?.rank ?? 0));
    }
  }

  /** Makes a row for each rank, unless ranks and nodes are the same as before. */
  #arrange(ranks: Rank[]): void {
    const shape = ranks.map((rank) => `${rank.node}:${rank.rank}`).join();
    if (shape === this.#shape) {
      return;
    }
    this.#shape = shape;
    this.#rows.clear();
    this.#groups.clear();
    setAttribute(this.element, 'data-dense', ranks.length > ROOMY ? '' : null);
    const numbers = [...new Set(ranks.map((each) => each.node))].sort((a, b) => a - b);
    const groups = numbers.map((number) => {
      const title = element('span', 'jsky-node-title');
      const where = element('span', 'jsky-quiet');
      this.#groups.set(number, { title, where });
      const rows = ranks.filter((rank) => rank.node === number).map((rank) => this.#row(rank));
      return element(
        'div',
        'jsky-node',
        { role: 'group', 'aria-label': this.#trans.__('node %1', number) },
        element('div', 'jsky-node-head', { role: 'presentation' }, title, where),
        element('div', 'jsky-node-ranks', { role: 'presentation' }, ...rows)
      );
    });
    this.element.replaceChildren(this.#headings, ...groups);
  }

  #row(rank: Rank): HTMLElement {
    const row = new RankRow(this.#trans, rank.rank, this.#isCell);
    this.#rows.set(rank.rank, row);
    return row.element;
  }

  /** Moves the focus as in a list; returns whether the key moves it. */
  #move(rank: number, key: string): boolean {
    const all = [...this.#rows.keys()];
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    const end = { Home: 0, End: all.length - 1 }[key];
    if (step === undefined && end === undefined) {
      return false;
    }
    const to = end ?? all.indexOf(rank) + (step ?? 0);
    this.#focus(all[Math.min(Math.max(to, 0), all.length - 1)] ?? rank);
    return true;
  }

  #focus(rank: number): void {
    this.#reachable(rank);
    this.#rows.get(rank)?.element.focus();
  }

  /** The Tab key reaches only one row; arrows move between rows. */
  #reachable(rank: number): void {
    for (const [number, row] of this.#rows) {
      row.element.tabIndex = number === rank ? 0 : -1;
    }
  }
}

/** The headings of the columns; for screen readers, each row labels its own numbers. */
function headings(trans: Translation): HTMLElement {
  const columns: [string, string][] = [
    ['jsky-number', trans.__('Rank')],
    ['jsky-state', trans.__('State')],
    ['jsky-seconds', trans.__('Time')],
    ['jsky-device', trans.__('Device')],
    ['jsky-meter jsky-busy', trans.__('Utilisation')],
    ['jsky-meter jsky-memory', trans.__('Memory')],
    ['jsky-line', trans.__('Output')]
  ];
  const names = columns.map(([name, heading]) => element('span', name, {}, heading));
  return element(
    'div',
    'jsky-node jsky-headings',
    { 'aria-hidden': 'true' },
    element('div', 'jsky-node-head', {}, trans.__('Node')),
    element('div', 'jsky-heading-row', {}, ...names)
  );
}

function rankOf(target: EventTarget | null): number | null {
  const row = (target as Element | null)?.closest<HTMLElement>('[data-rank]');
  return row ? Number(row.dataset.rank) : null;
}
