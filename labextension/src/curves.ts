/* What ranks have logged: a small chart for each name, the head's curve by default, all ranks on request. */

import { element, setAttribute, setOptional, setShown, setText } from './dom.ts';
import type { Curve } from './snapshot.ts';
import { plain } from './text.ts';
import type { Translation } from './words.ts';

/** Charts that are shown at first; with more, there is a button. */
const FIRST = 12;

export const SVG = 'http://www.w3.org/2000/svg';
export const [WIDTH, HEIGHT] = [240, 80];

/** Room above and below a curve, so that its line is not cut. */
const MARGIN = 3;

/** The length of the dash for a point that has no neighbours. */
const DASH = 6;

export class Curves {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #charts = new Map<string, Chart>();
  readonly #grid = element('div', 'jsky-charts');
  readonly #allRanks = element('button', 'jsky-small-button', { type: 'button' });
  readonly #allNames = element('button', 'jsky-small-button', { type: 'button' });
  readonly #tools: HTMLElement;
  #shown: Curve[] | null = null;
  #hasAllRanks = false;
  #hasAllNames = false;

  constructor(trans: Translation) {
    this.#trans = trans;
    this.#tools = element('div', 'jsky-curve-tools', {}, this.#allRanks, this.#allNames);
    this.element = element('div', 'jsky-curves', {}, this.#grid, this.#tools);
    this.#allRanks.addEventListener('click', () => {
      this.#hasAllRanks = !this.#hasAllRanks;
      this.#draw();
    });
    this.#allNames.addEventListener('click', () => {
      this.#hasAllNames = !this.#hasAllNames;
      this.#draw();
    });
    setShown(this.element, false);
  }

  show(curves: Curve[]): void {
    if (curves !== this.#shown) {
      this.#shown = curves;
      this.#draw();
    }
  }

  #draw(): void {
    const byName = new Map<string, Curve[]>();
    for (const curve of this.#shown ?? []) {
      const name = plain(curve.name);
      byName.set(name, [...(byName.get(name) ?? []), curve]);
    }
    setShown(this.element, byName.size > 0);
    const names = [...byName.keys()];
    const visible = this.#hasAllNames ? names : names.slice(0, FIRST);
    for (const [name, chart] of this.#charts) {
      if (!visible.includes(name)) {
        chart.element.remove();
        this.#charts.delete(name);
      }
    }
    for (const name of visible) {
      let chart = this.#charts.get(name);
      if (!chart) {
        chart = new Chart(this.#trans, name);
        this.#charts.set(name, chart);
        this.#grid.append(chart.element);
      }
      const curves = byName.get(name)!;
      chart.show(this.#hasAllRanks ? curves : curves.slice(0, 1));
    }
    const several = [...byName.values()].some((curves) => curves.length > 1);
    setOptional(this.#allRanks, several ? this.#trans.__('All ranks') : null);
    setAttribute(this.#allRanks, 'aria-pressed', String(this.#hasAllRanks));
    const all = this.#hasAllNames
      ? this.#trans.__('Show fewer')
      : this.#trans.__('Show all %1', names.length);
    setOptional(this.#allNames, names.length > FIRST ? all : null);
    setShown(this.#tools, several || names.length > FIRST);
  }
}

/** The range of a chart: the least and greatest step and value of its curves. */
export interface Span {
  left: number;
  right: number;
  low: number;
  high: number;
}

class Chart {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #name: string;
  readonly #figure = element('span', 'jsky-chart-figure');
  readonly #note = element('span', 'jsky-chart-note jsky-quiet');
  readonly #high = element('span', 'jsky-chart-high');
  readonly #low = element('span', 'jsky-chart-low');
  readonly #left = element('span', '');
  readonly #right = element('span', '');
  readonly #svg = document.createElementNS(SVG, 'svg');
  readonly #lines = new Map<number, SVGElement>();
  #curves: Curve[] = [];
  #span: Span = { left: 0, right: 1, low: 0, high: 1 };

  constructor(trans: Translation, name: string) {
    this.#trans = trans;
    this.#name = name;
    this.#svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.#svg.setAttribute('preserveAspectRatio', 'none');
    this.#svg.setAttribute('role', 'img');
    const title = element('span', 'jsky-chart-name', { title: name }, name);
    const scale = element('div', 'jsky-chart-scale', {}, this.#high, this.#low);
    const plot = element('div', 'jsky-plot');
    plot.append(this.#svg);
    this.element = element(
      'div',
      'jsky-chart',
      {},
      element('div', 'jsky-chart-head', {}, title, this.#note, this.#figure),
      scale,
      plot,
      element('div', 'jsky-chart-steps', {}, this.#left, this.#right)
    );
    plot.addEventListener('pointermove', (event) => this.#point(event));
    plot.addEventListener('pointerleave', () => this.#tell());
  }

  show(curves: Curve[]): void {
    this.#curves = curves;
    this.#span = spanOf(curves);
    const { left, right, low, high } = this.#span;
    for (const [rank, line] of this.#lines) {
      if (!curves.some((curve) => curve.rank === rank)) {
        line.remove();
        this.#lines.delete(rank);
      }
    }
    for (const curve of curves) {
      let line = this.#lines.get(curve.rank);
      if (!line) {
        line = document.createElementNS(SVG, 'path');
        line.setAttribute('vector-effect', 'non-scaling-stroke');
        const name = document.createElementNS(SVG, 'title');
        name.textContent = this.#trans.__('rank %1', curve.rank);
        line.append(name);
        this.#lines.set(curve.rank, line);
        this.#svg.prepend(line);
      }
      line.style.stroke = curve === curves[0] ? '' : colour(curve.rank);
      setAttribute(line, 'd', pathOf(curve, this.#span));
    }
    setText(this.#high, figure(high, 3));
    setText(this.#low, low === high ? '' : figure(low, 3));
    setText(this.#left, figure(left));
    setText(this.#right, right === left ? '' : figure(right));
    const last = curves[0] ? figure(curves[0].last) : '';
    const label = this.#trans.__('%1: %2, from %3 to %4', this.#name, last, figure(low), figure(high));
    setAttribute(this.#svg, 'aria-label', label);
    this.#tell();
  }

  /** Shows the latest value, and what the chart leaves out. */
  #tell(): void {
    const [curve] = this.#curves;
    const others = this.#curves.length > 1 ? this.#trans.__('%1 ranks', this.#curves.length) : '';
    const gaps = this.#curves.reduce((sum, each) => sum + each.gaps, 0);
    const broken = gaps ? this.#trans._n('%1 NaN/∞', '%1 NaN/∞', gaps) : '';
    const rank = curve && curve.rank !== 0 && !others ? this.#trans.__('rank %1', curve.rank) : '';
    setText(this.#note, [rank, others, broken].filter(Boolean).join(' · '));
    setText(this.#figure, curve ? figure(curve.last) : '');
  }

  /** Shows the value nearest to the pointer. */
  #point(event: PointerEvent): void {
    const box = this.#svg.getBoundingClientRect();
    const { left, right, low, high } = this.#span;
    const x = left + ((event.clientX - box.left) / (box.width || 1)) * (right - left);
    const y = high - ((event.clientY - box.top) / (box.height || 1)) * (high - low);
    let best: { away: number; text: string } | null = null;
    for (const curve of this.#curves) {
      const at = nearest(curve.steps, x);
      const value = curve.values[at];
      const away = Math.abs((value ?? y) - y);
      if (at >= 0 && (best === null || away < best.away)) {
        const who = this.#curves.length > 1 ? `${this.#trans.__('rank %1', curve.rank)} · ` : '';
        const text = this.#trans.__('step %1: %2', figure(curve.steps[at]!), figure(value ?? null));
        best = { away, text: who + text };
      }
    }
    if (best) {
      setText(this.#note, best.text);
      setText(this.#figure, '');
    }
  }
}

function spanOf(curves: Curve[]): Span {
  const span = { left: Infinity, right: -Infinity, low: Infinity, high: -Infinity };
  for (const { steps, values } of curves) {
    for (const [at, step] of steps.entries()) {
      span.left = Math.min(span.left, step);
      span.right = Math.max(span.right, step);
      const value = values[at] ?? null;
      if (value !== null) {
        span.low = Math.min(span.low, value);
        span.high = Math.max(span.high, value);
      }
    }
  }
  if (span.left > span.right) {
    [span.left, span.right] = [0, 0];
  }
  return span.low > span.high ? { ...span, low: NaN, high: NaN } : span;
}

/** Returns a curve as an SVG path, with a gap for each missing value. */
export function pathOf({ steps, values }: Pick<Curve, 'steps' | 'values'>, span: Span): string {
  const wide = span.right - span.left;
  const tall = span.high - span.low;
  const parts: string[] = [];
  let isDrawing = false;
  for (const [at, step] of steps.entries()) {
    const value = values[at] ?? null;
    if (value === null) {
      isDrawing = false;
      continue;
    }
    const x = (wide > 0 ? (step - span.left) / wide : 0.5) * WIDTH;
    const part = tall > 0 ? (value - span.low) / tall : 0.5;
    const y = HEIGHT - MARGIN - part * (HEIGHT - 2 * MARGIN);
    const isAlone = !isDrawing && (values[at + 1] ?? null) === null;
    const from = isAlone ? x - DASH / 2 : x;
    parts.push(`${isDrawing ? 'L' : 'M'}${from.toFixed(1)} ${y.toFixed(1)}${isAlone ? `h${DASH}` : ''}`);
    isDrawing = true;
  }
  return parts.join('');
}

function nearest(steps: number[], x: number): number {
  let best = -1;
  for (const [at, step] of steps.entries()) {
    if (best < 0 || Math.abs(step - x) < Math.abs(steps[best]! - x)) {
      best = at;
    }
  }
  return best;
}

/** A colour for each rank, visible on white and on black. */
function colour(rank: number): string {
  return `hsl(${Math.round(rank * 137.5 + 20) % 360} 60% 50%)`;
}

/** Returns a number as it is shown; null stands for NaN and for the infinities, which JSON lacks. */
export function figure(value: number | null, digits = 4): string {
  if (value === null || Number.isNaN(value)) {
    return 'NaN/∞';
  }
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 10 ** (digits + 3))) {
    return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
  }
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
}
