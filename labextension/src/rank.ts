/* One rank: number, state, time, device, utilisation, memory, and what it printed last. */

import { Bar } from './bar.ts';
import { element, setAttribute, setOptional, setShown, setText, type Fact } from './dom.ts';
import type { Progress, Rank } from './snapshot.ts';
import { plain } from './text.ts';
import { duration, percent, share, type Translation } from './words.ts';

/** What a row is told of the run: whether it is lost, waits for its turn, or is one of the past, of which
    the present use of devices says nothing. */
export interface Circumstances {
  isLost: boolean;
  waits: boolean;
  isPast: boolean;
}

export class RankRow {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #isCell: boolean;
  readonly #dot = element('span', 'jsky-dot');
  readonly #state = element('span', 'jsky-rank-state');
  readonly #seconds = element('span', 'jsky-seconds');
  readonly #device = element('span', 'jsky-device-name');
  readonly #place = element('span', '');
  readonly #busy = new Bar('jsky-busy');
  readonly #memory = new Bar('jsky-memory');
  readonly #mark = element('span', 'jsky-mark');
  readonly #progress = new Bar('jsky-progress');
  readonly #line = element('span', 'jsky-line');
  #shown: Rank | null = null;
  #gpu: string | null = null;
  #isLost = false;
  #waits = false;
  #isPast = false;

  constructor(trans: Translation, rank: number, isCell: boolean) {
    this.#trans = trans;
    this.#isCell = isCell;
    this.element = element(
      'div',
      'jsky-rank',
      { role: 'option', 'data-rank': String(rank) },
      element('span', 'jsky-number', {}, String(rank)),
      element('span', 'jsky-state', {}, this.#dot, this.#state),
      this.#seconds,
      element('span', 'jsky-device', {}, this.#device, this.#place),
      this.#busy.element,
      this.#memory.element,
      this.#mark,
      this.#progress.element,
      this.#line
    );
    this.element.tabIndex = -1;
  }

  /** Shows the rank; until a run has its turn, what the rank does is another run's. */
  show(
    rank: Rank,
    gpu: string | null,
    selected: boolean,
    { isLost, waits, isPast }: Circumstances
  ): void {
    setAttribute(this.element, 'aria-selected', String(selected));
    const isSame = rank === this.#shown && gpu === this.#gpu && isPast === this.#isPast;
    if (isSame && isLost === this.#isLost && waits === this.#waits) {
      return;
    }
    this.#shown = rank;
    this.#gpu = gpu;
    this.#isLost = isLost;
    this.#waits = waits;
    this.#isPast = isPast;
    const key = this.#keyOf(rank);
    setAttribute(this.element, 'data-outcome', key);
    setAttribute(this.#dot, 'data-phase', key);
    setText(this.#state, this.#stateOf(rank));
    setText(this.#seconds, rank.seconds === null ? '' : duration(rank.seconds, true));
    // All are of one maker, as a rule: in a narrow column there is more to be said.
    setText(this.#device, this.#deviceOf(gpu).replace(/^NVIDIA /, ''));
    setText(this.#place, placeOf(rank, gpu));
    this.#busy.show(rank.utilisation, [
      rank.utilisation !== null && percent(rank.utilisation)
    ]);
    this.#memory.show(rank.memory && rank.memory[0] / rank.memory[1], [
      rank.memory && share(rank.memory)
    ]);
    setOptional(this.#mark, this.#markOf(rank));
    setAttribute(this.#mark, 'data-quiet', rank.restarted || rank.began_empty ? null : '');
    const isMeasured = rank.utilisation !== null || rank.memory !== null;
    setAttribute(this.element, 'data-measured', isMeasured ? '' : null);
    const trouble = rank.error ?? rank.trouble;
    const isOther = this.#isCell && waits; // what the rank prints is of another run
    const progress = trouble === null && !isOther ? rank.progress : null;
    setShown(this.#progress.element, progress !== null);
    const amounts = progress ? this.#amountsOf(progress, rank) : [];
    if (progress) {
      this.#progress.show(progress.part, amounts);
      // Also beside the present state of a rank, the bar is that of its run.
      const end = rank.outcome ?? (isLost ? 'unknown' : null);
      setAttribute(this.#progress.element, 'data-outcome', end);
    }
    setAttribute(this.#line, 'data-trouble', trouble === null ? null : '');
    const line = trouble ?? (isOther ? '' : rank.line);
    setOptional(this.#line, progress ? null : plain(line) || ' ');
    const described = this.#described(rank, gpu, progress ? amounts : [plain(line)]);
    setAttribute(this.element, 'aria-label', described);
    setAttribute(this.element, 'title', described);
  }

  /** All that the row shows, in words; `last` is how far the rank is, or the line that it shows. */
  #described(rank: Rank, gpu: string | null, last: Fact[]): string {
    const isMeasured = !this.#isLost && !this.#isPast;
    const parts = [
      this.#trans.__('rank %1', rank.rank),
      this.#deviceOf(gpu) + placeOf(rank, gpu),
      this.#stateOf(rank),
      this.#markOf(rank),
      rank.seconds !== null && duration(rank.seconds, true),
      isMeasured &&
        rank.utilisation !== null &&
        this.#trans.__('%1 busy', percent(rank.utilisation)),
      isMeasured && rank.memory && this.#trans.__('memory %1', share(rank.memory)),
      ...last
    ];
    return parts.filter(Boolean).join(', ');
  }

  /** How far a rank is: "3/40", and the time left. */
  #amountsOf({ count, left }: Progress, { outcome }: Rank): Fact[] {
    const goesOn = left !== null && !outcome && !this.#isLost;
    return [count, goesOn && this.#trans.__('%1 left', duration(left, false))];
  }

  /** What distinguishes a rank from others in its state. */
  #markOf(rank: Rank): string | null {
    if (rank.restarted) {
      return this.#trans.__('restarted, empty');
    }
    if (rank.began_empty) {
      return this.#trans.__('began empty');
    }
    return this.#keyOf(rank) === 'released' ? this.#trans.__('another rank failed') : null;
  }

  #deviceOf(gpu: string | null): string {
    return gpu === null ? this.#trans.__('CPU') : plain(gpu);
  }

  /** A cell shows how a rank's part ended; elsewhere, its present state counts. */
  #keyOf({ outcome, phase }: Rank): string {
    if (this.#isLost && !outcome && phase !== 'gone') {
      return 'unknown';
    }
    if (this.#isCell && this.#waits && phase === 'running') {
      return 'waiting';
    }
    const hasFailed = outcome === 'error' && phase === 'idle';
    return this.#isCell || hasFailed ? (outcome ?? phase) : phase;
  }

  #stateOf(rank: Rank): string {
    switch (this.#keyOf(rank)) {
      case 'ok':
        return this.#trans.__('finished');
      case 'error':
        return this.#trans.__('failed');
      case 'lost':
        return this.#trans.__('lost');
      case 'stopped':
      case 'released':
        return this.#trans.__('stopped');
      case 'waiting':
        return this.#trans.__('waiting');
      case 'starting':
        return this.#trans.__('starting');
      case 'idle':
        return this.#trans.__('idle');
      case 'running':
        return this.#trans.__('running');
      case 'unknown':
        return this.#trans.__('unknown');
      default:
        return this.#trans.__('gone');
    }
  }
}

/** Which of the GPUs of its node a rank has: always shown, however long their name is. */
function placeOf(rank: Rank, gpu: string | null): string {
  return gpu === null || rank.gpu === null ? '' : ` #${rank.gpu}`;
}
