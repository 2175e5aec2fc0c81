/* The last ten minutes of the nodes, and of the ranks of those that are unfolded: a row of small curves
   for each. */

import { HEIGHT, pathOf, SVG, WIDTH } from './curves.ts';
import { element, setAttribute, setOptional, setShown, setText } from './dom.ts';
import type { Rank } from './snapshot.ts';
import { KINDS, nothing, type Kind, type NodeUse, type Usage, type Used, type Values } from './usage.ts';
import { percent, size, type Translation } from './words.ts';

/** Milliseconds that are shown. */
const SHOWN = 600_000;

/** Milliseconds between two samples above which the curve has a gap. */
const GAP = 20_000;

/** The rows of all nodes; those of ranks are made when their node is unfolded. */
export class HistoryTable {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #table = element('table', 'jsky-history');
  readonly #head = element('tr', '');
  readonly #empty = element('div', 'jsky-quiet');
  readonly #nodes = new Map<number, NodeRows>();
  #shown: { usage: Usage; ranks: Rank[] } | null = null;
  #columns = '';

  constructor(trans: Translation) {
    this.#trans = trans;
    setAttribute(this.#table, 'aria-label', trans.__('The last ten minutes'));
    this.#table.append(element('thead', '', {}, this.#head));
    setText(this.#empty, trans.__('Nothing was measured yet: the first figures come after five seconds.'));
    this.element = element('div', '', {}, this.#table, this.#empty);
    setShown(this.#table, false);
  }

  show(usage: Usage, ranks: Rank[]): void {
    this.#shown = { usage, ranks };
    const numbers = [...usage.nodes.keys()]
      .filter((node) => ranks.some((rank) => rank.node === node))
      .sort((a, b) => a - b);
    const nodes = numbers.map((number) => usage.nodes.get(number)!);
    setShown(this.#table, numbers.length > 0);
    setShown(this.#empty, numbers.length === 0);
    const kinds = KINDS.filter((kind) => nodes.some(({ curves }) => curves.has(kind)));
    this.#arrange(kinds, numbers);
    const ofNodes = scalesOf(nodes);
    const ofRanks = scalesOf(nodes.flatMap((node) => [...node.ranks.values()]));
    for (const [at, number] of numbers.entries()) {
      const own = ranks.filter((rank) => rank.node === number);
      const isOpen = usage.unfolded.has(number);
      this.#nodes.get(number)!.show(nodes[at]!, own, isOpen, kinds, { ofNodes, ofRanks }, usage.latest);
    }
  }

  #arrange(kinds: Kind[], numbers: number[]): void {
    const columns = kinds.join();
    if (columns !== this.#columns) {
      this.#columns = columns;
      const headings = [this.#trans.__('Node'), ...kinds.map((kind) => titleOf(this.#trans, kind))];
      this.#head.replaceChildren(...headings.map((text) => element('th', '', { scope: 'col' }, text)));
      this.#nodes.forEach(({ element }) => element.remove());
      this.#nodes.clear();
    }
    for (const [number, rows] of this.#nodes) {
      if (!numbers.includes(number)) {
        rows.element.remove();
        this.#nodes.delete(number);
      }
    }
    for (const number of numbers) {
      if (!this.#nodes.has(number)) {
        const rows = new NodeRows(this.#trans, number, () => this.#toggle(number));
        this.#nodes.set(number, rows);
        const after = [...this.#nodes].filter(([each]) => each > number).map(([, each]) => each.element);
        this.#table.insertBefore(rows.element, after.find((each) => each.parentElement) ?? null);
      }
    }
  }

  #toggle(node: number): void {
    if (this.#shown) {
      const { usage, ranks } = this.#shown;
      if (!usage.unfolded.delete(node)) {
        usage.unfolded.add(node);
      }
      this.show(usage, ranks);
    }
  }
}

/** The greatest value of each kind, for the rows that stand below each other. */
type Scales = Map<Kind, number>;

function scalesOf(rows: Used[]): Scales {
  const scales = new Map<Kind, number>([
    ['processor', 1],
    ['gpu', 1],
    ['network', 1000]
  ]);
  for (const { curves, totals } of rows) {
    for (const [kind, values] of curves) {
      const fixed = kind === 'gpu_memory' ? (totals.get(kind) ?? 0) : 0;
      const greatest = values.reduce<number>((most, value) => Math.max(most, value ?? 0), fixed);
      scales.set(kind, Math.max(scales.get(kind) ?? 1, greatest));
    }
  }
  return scales;
}

class NodeRows {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #number: number;
  readonly #fold = element('button', 'jsky-fold', { type: 'button' });
  readonly #count = element('span', 'jsky-quiet');
  readonly #row: Row;
  readonly #ranks = new Map<number, Row>();

  constructor(trans: Translation, number: number, toggle: () => void) {
    this.#trans = trans;
    this.#number = number;
    const caret = element('span', 'jsky-caret-mark', { 'aria-hidden': 'true' });
    this.#fold.append(caret, element('span', '', {}, trans.__('node %1', number)), this.#count);
    this.#fold.addEventListener('click', toggle);
    this.#row = new Row(trans, 'jsky-history-node', this.#fold);
    this.element = element('tbody', '', {}, this.#row.element);
  }

  show(
    node: NodeUse,
    ranks: Rank[],
    isOpen: boolean,
    kinds: Kind[],
    { ofNodes, ofRanks }: { ofNodes: Scales; ofRanks: Scales },
    now: number
  ): void {
    const gone = ranks.filter(isGone).length;
    const isLost = gone === ranks.length;
    const some = gone > 0 ? this.#trans._n('%1 rank lost', '%1 ranks lost', gone) : null;
    const state = { text: isLost ? this.#trans.__('lost') : some, isLost };
    setAttribute(this.#fold, 'aria-expanded', String(isOpen));
    setText(this.#count, this.#trans._n('%1 rank', '%1 ranks', ranks.length));
    const title = this.#trans.__('node %1', this.#number);
    this.#row.show(title, node, node.times, state, kinds, ofNodes, now);
    const shown = isOpen ? ranks : [];
    for (const [number, row] of this.#ranks) {
      if (!shown.some(({ rank }) => rank === number)) {
        row.element.remove();
        this.#ranks.delete(number);
      }
    }
    for (const rank of shown) {
      const title = this.#trans.__('rank %1', rank.rank);
      let row = this.#ranks.get(rank.rank);
      if (!row) {
        row = new Row(this.#trans, 'jsky-history-rank', element('span', '', {}, title));
        this.#ranks.set(rank.rank, row);
        this.element.append(row.element);
      }
      const used = node.ranks.get(rank.rank) ?? nothing();
      const isLost = isGone(rank);
      const state = { text: isLost ? this.#trans.__('lost') : null, isLost };
      row.show(title, used, node.times, state, kinds, ofRanks, now);
    }
  }
}

function isGone({ phase, outcome }: Rank): boolean {
  return phase === 'gone' || outcome === 'lost';
}

class Row {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #state = element('span', 'jsky-history-state');
  readonly #sparks = new Map<Kind, Spark>();

  constructor(trans: Translation, name: string, title: HTMLElement) {
    this.#trans = trans;
    this.element = element('tr', name, {}, element('th', '', { scope: 'row' }, title, this.#state));
  }

  show(
    title: string,
    { curves, totals }: Used,
    times: number[],
    state: { text: string | null; isLost: boolean },
    kinds: Kind[],
    scales: Scales,
    now: number
  ): void {
    setOptional(this.#state, state.text);
    setAttribute(this.element, 'data-lost', state.isLost ? '' : null);
    for (const kind of kinds) {
      let spark = this.#sparks.get(kind);
      if (!spark) {
        spark = new Spark();
        this.#sparks.set(kind, spark);
        this.element.append(spark.element);
      }
      const values = curves.get(kind) ?? [];
      const last = state.isLost ? null : (values.at(-1) ?? null);
      spark.show(times, values, scales.get(kind) ?? 1, now, last === null ? '' : figureOf(kind, last));
      const known = values.filter((value) => value !== null);
      const total = totals.get(kind);
      const words = [
        this.#trans.__('%1 of %2', titleOf(this.#trans, kind), title),
        last !== null && (total ? this.#trans.__('%1 of %2', figureOf(kind, last), figureOf(kind, total)) : figureOf(kind, last)),
        known.length > 0 &&
          this.#trans.__(
            '%1 to %2 in the last ten minutes',
            figureOf(kind, Math.min(...known)),
            figureOf(kind, Math.max(...known))
          )
      ];
      setAttribute(spark.element, 'title', words.filter(Boolean).join(' · '));
    }
  }
}

/** A small curve from zero up to a scale shared with others, and the latest value. */
class Spark {
  readonly element: HTMLElement;
  readonly #svg = document.createElementNS(SVG, 'svg');
  readonly #line = document.createElementNS(SVG, 'path');
  readonly #plot = element('span', 'jsky-spark');
  readonly #figure = element('span', 'jsky-spark-figure');

  constructor() {
    this.#svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.#svg.setAttribute('preserveAspectRatio', 'none');
    this.#svg.setAttribute('aria-hidden', 'true');
    this.#line.setAttribute('vector-effect', 'non-scaling-stroke');
    this.#svg.append(this.#line);
    this.#plot.append(this.#svg);
    this.element = element('td', '', {}, this.#plot, this.#figure);
  }

  show(times: number[], values: Values, scale: number, now: number, figure: string): void {
    const span = { left: now - SHOWN, right: now, low: 0, high: scale };
    setShown(this.#plot, values.length > 0);
    setAttribute(this.#line, 'd', values.length === 0 ? '' : pathOf(withGaps(times, values, span.left), span));
    setText(this.#figure, figure);
  }
}

/** Returns a curve with gaps at times at which nothing was measured. */
function withGaps(times: number[], values: Values, since: number): { steps: number[]; values: Values } {
  const drawn: { steps: number[]; values: Values } = { steps: [], values: [] };
  let before = Infinity;
  for (const [at, time] of times.entries()) {
    if (time < since) {
      continue;
    }
    if (time - before > GAP) {
      drawn.steps.push(time);
      drawn.values.push(null);
    }
    drawn.steps.push(time);
    drawn.values.push(values[at] ?? null);
    before = time;
  }
  return drawn;
}

function titleOf(trans: Translation, kind: Kind): string {
  switch (kind) {
    case 'processor':
      return trans.__('CPUs'); // how many are busy
    case 'gpu':
      return trans.__('GPU');
    case 'gpu_memory':
      return trans.__('GPU memory');
    case 'memory':
      return trans.__('Memory');
    default:
      return trans.__('Network');
  }
}

function figureOf(kind: Kind, value: number): string {
  switch (kind) {
    case 'processor':
      return value >= 10 ? value.toFixed(0) : value.toFixed(1);
    case 'gpu':
      return percent(value);
    case 'network':
      return `${size(value)}/s`;
    default:
      return size(value);
  }
}
