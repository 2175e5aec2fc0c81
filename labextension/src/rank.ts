/* One rank: number, state, device, utilisation, memory, the last line that it printed. */

import { element, setAttribute, setText } from './dom.ts';
import type { Rank } from './snapshot.ts';
import { plain } from './text.ts';
import { percent, share, type Translation } from './words.ts';

export class RankRow {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #dot = element('span', 'jsky-dot');
  readonly #state = element('span', 'jsky-rank-state');
  readonly #device = element('span', 'jsky-device');
  readonly #busy = new Bar('jsky-busy');
  readonly #memory = new Bar('jsky-memory');
  readonly #line = element('span', 'jsky-line');
  #shown: Rank | null = null;
  #gpu: string | null = null;

  constructor(trans: Translation, rank: number) {
    this.#trans = trans;
    this.element = element(
      'div',
      'jsky-rank',
      { role: 'option', 'data-rank': String(rank) },
      element('span', 'jsky-number', {}, String(rank)),
      element('span', 'jsky-state', {}, this.#dot, this.#state),
      this.#device,
      this.#busy.element,
      this.#memory.element,
      this.#line
    );
    this.element.tabIndex = -1;
  }

  show(rank: Rank, gpu: string | null, selected: boolean): void {
    setAttribute(this.element, 'aria-selected', String(selected));
    if (rank === this.#shown && gpu === this.#gpu) {
      return;
    }
    this.#shown = rank;
    this.#gpu = gpu;
    setAttribute(this.#dot, 'data-phase', rank.phase);
    setText(this.#state, this.#words(rank.phase));
    setText(this.#device, this.#deviceOf(rank, gpu));
    this.#busy.show(rank.utilisation, rank.utilisation === null ? '' : percent(rank.utilisation));
    this.#memory.show(
      rank.memory && rank.memory[0] / rank.memory[1],
      rank.memory ? share(rank.memory) : ''
    );
    setAttribute(this.#line, 'data-trouble', rank.trouble === null ? null : '');
    setText(this.#line, plain(rank.trouble ?? rank.line));
    const described = this.#described(rank);
    setAttribute(this.element, 'aria-label', described);
    setAttribute(this.element, 'title', described);
  }

  #described(rank: Rank): string {
    const parts = [
      this.#trans.__('rank %1', rank.rank),
      this.#device.textContent,
      this.#words(rank.phase),
      rank.utilisation !== null && this.#trans.__('%1 busy', percent(rank.utilisation)),
      rank.memory && this.#trans.__('memory %1', share(rank.memory)),
      rank.trouble && plain(rank.trouble)
    ];
    return parts.filter(Boolean).join(', ');
  }

  #deviceOf(rank: Rank, gpu: string | null): string {
    if (gpu === null) {
      return this.#trans.__('CPU');
    }
    return rank.gpu === null ? plain(gpu) : `${plain(gpu)} #${rank.gpu}`;
  }

  #words(phase: Rank['phase']): string {
    switch (phase) {
      case 'starting':
        return this.#trans.__('starting');
      case 'idle':
        return this.#trans.__('idle');
      case 'running':
        return this.#trans.__('running');
      default:
        return this.#trans.__('gone');
    }
  }
}

/** A bar with its figure. */
class Bar {
  readonly element: HTMLElement;
  readonly #fill = element('span', 'jsky-fill');
  readonly #figure = element('span', 'jsky-figure');

  constructor(name: string) {
    this.element = element(
      'span',
      `jsky-meter ${name}`,
      {},
      element('span', 'jsky-bar', {}, this.#fill),
      this.#figure
    );
  }

  show(part: number | null, figure: string): void {
    const filled = String(Math.min(Math.max(part ?? 0, 0), 1).toFixed(2));
    if (this.#fill.style.getPropertyValue('--jsky-part') !== filled) {
      this.#fill.style.setProperty('--jsky-part', filled);
    }
    setText(this.#figure, figure);
  }
}
