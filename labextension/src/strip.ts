/* The strip: what a run is doing or has done, in a line; and Stop. */

import type { Action } from './action.ts';
import { Bar } from './bar.ts';
import { ClusterName } from './cluster.ts';
import {
  element,
  setAttribute,
  setFacts,
  setOptional,
  setShown,
  setText,
  type Fact
} from './dom.ts';
import { PageLinks } from './pages.ts';
import type { Rank, Run, Snapshot } from './snapshot.ts';
import { plain } from './text.ts';
import type { Place } from './view.ts';
import { amount, duration, money, rankRanges, size, type Translation } from './words.ts';

/** Milliseconds for a kernel to react to Stop before the user is told of another way. */
const PATIENCE = 4000;

/** Least bytes sent for a run that are shown. */
const WORTH_SAYING = 100_000;

interface Hooks {
  toggle(): void;
  /** Shows the output of a rank. */
  inspect(rank: number): void;
}

export class Strip {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #isCell: boolean;
  readonly #toggle = element('button', 'jsky-toggle', { type: 'button' });
  readonly #icon = element('span', 'jsky-run-icon', { 'aria-hidden': 'true' });
  readonly #state = element('span', 'jsky-run-state');
  readonly #elapsed = element('span', 'jsky-elapsed');
  readonly #title = element('span', 'jsky-title');
  readonly #progress: Bar;
  readonly #failed = element('button', 'jsky-failed', { type: 'button' });
  readonly #facts = element('span', 'jsky-run-facts jsky-quiet');
  readonly #restore = element('button', 'jsky-small-button', { type: 'button' });
  readonly #cluster: ClusterName;
  readonly #pages: PageLinks;
  readonly #stop = element('button', 'jsky-stop', { type: 'button' }) as HTMLButtonElement;
  readonly #where = element('button', 'jsky-small-button jsky-ask-where', { type: 'button' });
  readonly #hint = element('div', 'jsky-hint', { role: 'status' });
  #run: Run | null = null;
  #runs = false;
  #failedRank = 0;
  #since = 0;
  #clock: ReturnType<typeof setInterval> | undefined;
  #asked: ReturnType<typeof setTimeout> | undefined;

  constructor(
    trans: Translation,
    kind: Place['kind'],
    act: (action: Action) => void,
    hooks: Hooks
  ) {
    this.#trans = trans;
    this.#isCell = kind === 'cell';
    this.#progress = new Bar('jsky-progress');
    this.#cluster = new ClusterName(trans, (cluster) => act({ kind: 'cluster', cluster }));
    this.#pages = new PageLinks(trans, 'jsky-pages');
    const words = [this.#icon, this.#state, this.#elapsed];
    if (this.#isCell) {
      const caret = element('span', 'jsky-caret-mark', { 'aria-hidden': 'true' });
      this.#toggle.append(caret, ...words);
      this.#toggle.addEventListener('click', hooks.toggle);
    }
    const lead = this.#isCell ? this.#toggle : element('span', 'jsky-lead', {}, ...words);
    setText(this.#restore, trans.__('Show missing output'));
    this.#restore.addEventListener('click', () => {
      if (this.#run) {
        act({ kind: 'restore', run: this.#run.id });
      }
    });
    this.#failed.addEventListener('click', () => hooks.inspect(this.#failedRank));
    this.#stop.addEventListener('click', () => {
      if (this.#run) {
        this.#waitForStop();
        act({ kind: 'stop', run: this.#run.id });
      }
    });
    setText(this.#where, trans.__('Where?'));
    setAttribute(this.#where, 'title', trans.__('Show what each rank is doing'));
    this.#where.addEventListener('click', () => {
      if (this.#run) {
        act({ kind: 'where', run: this.#run.id });
      }
    });
    const facts = [this.#title, this.#progress.element, this.#failed, this.#facts];
    this.element = element(
      'div',
      'jsky-head',
      {},
      element(
        'div',
        'jsky-line-of-run',
        {},
        lead,
        ...facts,
        this.#restore,
        this.#where,
        ...(this.#isCell ? [this.#pages.element, this.#cluster.element] : []),
        this.#stop
      ),
      this.#hint
    );
    this.#resetStop();
  }

  show(snapshot: Snapshot, open: boolean, place: Place): void {
    const { run, cluster } = snapshot;
    const state = place.isLost ? 'unknown' : run?.state;
    const runs = state === 'running' || state === 'waiting';
    if (run?.id !== this.#run?.id || !runs) {
      this.#resetStop();
    }
    if (run?.id !== this.#run?.id || run?.seconds !== this.#run?.seconds) {
      this.#since = performance.now();
    }
    this.#run = run;
    this.#runs = state === 'running';
    this.#tick();
    this.#keepTime(this.#runs);
    setAttribute(this.element, 'data-state', state ?? null);
    this.setOpen(open);
    setText(this.#state, state ? this.#words(state) : this.#trans.__('Nothing has run yet'));
    // The cell itself is the title, unless the run is in the background.
    setOptional(this.#title, run && (run.background || !this.#isCell) ? plain(run.title) : null);
    this.#showProgress(run, state === 'running');
    this.#showFailed(snapshot);
    setFacts(this.#facts, this.#factsOf(snapshot, Boolean(place.isLost)));
    setAttribute(this.#facts, 'title', this.#facts.textContent || null);
    setShown(this.#restore, Boolean(place.isIncomplete));
    this.#cluster.show(cluster, state, Boolean(place.hasSidebar));
    // For a finished run, the sidebar knows which pages its cluster serves now.
    this.#pages.show(place.address && runs ? cluster.pages : [], place.address ?? String);
    setShown(this.#where, state === 'running');
    setShown(this.#stop, runs);
  }

  setOpen(open: boolean): void {
    setAttribute(this.#toggle, 'aria-expanded', String(open));
    const title = open ? this.#trans.__('Hide the ranks') : this.#trans.__('Show the ranks');
    setAttribute(this.#toggle, 'title', title);
  }

  /** The text for screen readers; it leaves out numbers, which change all the time. */
  summary({ run, ranks }: Snapshot): string {
    if (!run) {
      return '';
    }
    const gone = ranks.filter((rank) => rank.phase === 'gone').length;
    const parts = [
      this.#state.textContent ?? '',
      this.#failed.textContent ?? '',
      gone ? this.#trans._n('%1 rank is gone', '%1 ranks are gone', gone) : ''
    ];
    return parts.filter(Boolean).join('. ');
  }

  release(): void {
    this.#keepTime(false);
    clearTimeout(this.#asked);
  }

  #showProgress(run: Run | null, runs: boolean): void {
    const progress = run?.progress ?? null;
    // A full bar adds nothing to "Finished".
    const shown = progress !== null && !(run?.state === 'ok' && progress.part === 1);
    setShown(this.#progress.element, shown);
    if (shown) {
      const left =
        runs && progress.left !== null
          ? this.#trans.__('%1 left', duration(progress.left, false))
          : null;
      this.#progress.show(progress.part, [progress.count, left], plain(progress.label));
    }
  }

  /** Lists the ranks that failed; a click shows the error. */
  #showFailed({ ranks }: Snapshot): void {
    const failed = ranks.filter(({ outcome }) => outcome === 'error');
    const lost = ranks.filter(({ outcome }) => outcome === 'lost');
    const [first] = [...lost, ...failed];
    this.#failedRank = first?.rank ?? 0;
    const numbers = (some: Rank[]) => rankRanges(some.map(({ rank }) => rank));
    const parts = [
      failed.length &&
        this.#trans._n('rank %2 failed', 'ranks %2 failed', failed.length, numbers(failed)),
      lost.length && this.#trans._n('rank %2 lost', 'ranks %2 lost', lost.length, numbers(lost))
    ];
    setOptional(this.#failed, parts.filter(Boolean).join(', '));
    const error = plain(first?.error ?? '');
    setAttribute(this.#failed, 'title', error || null);
  }

  #factsOf({ run, sent_bytes, cluster }: Snapshot, isLost: boolean): Fact[] {
    // Records in older notebooks have no attempts.
    const attempt = run?.attempt ?? null;
    return [
      attempt &&
        this.#trans.__('attempt %1 of %2', String(attempt[0]), String(attempt[1])),
      run && this.#trans._n('%1 rank', '%1 ranks', run.ranks.length),
      run?.trouble && plain(run.trouble),
      sent_bytes >= WORTH_SAYING && this.#trans.__('%1 sent', size(sent_bytes)),
      this.#isCell
        ? run?.cost != null && !isLost && amount(this.#trans, run.cost, cluster.unit)
        : cluster.price !== null && this.#trans.__('%1 an hour', money(cluster.price))
    ];
  }

  /** Shows the elapsed time: seconds are counted here, without a message for each. */
  #tick(): void {
    if (!this.#run || this.#run.state === 'waiting') {
      setOptional(this.#elapsed, null);
    } else if (this.#runs) {
      const here = (performance.now() - this.#since) / 1000;
      setOptional(this.#elapsed, duration(this.#run.seconds + here, false));
    } else {
      // How long a run took whose end is not known is not known, either.
      const isOver = this.#run.state !== 'running';
      setOptional(this.#elapsed, isOver ? duration(this.#run.seconds, true) : null);
    }
  }

  #keepTime(running: boolean): void {
    if (running) {
      this.#clock ??= setInterval(() => this.#tick(), 1000);
    } else {
      clearInterval(this.#clock);
      this.#clock = undefined;
    }
  }

  #waitForStop(): void {
    this.#stop.disabled = true;
    setText(this.#stop, this.#trans.__('Stopping…'));
    setText(this.#hint, '');
    this.#asked = setTimeout(() => {
      this.#resetStop();
      // The notebook's button stops neither what runs beside its cells nor what others have begun.
      const isOfCell = this.#isCell && !this.#run?.background;
      setText(
        this.#hint,
        isOfCell
          ? this.#trans.__("The kernel does not react yet: use the notebook's Stop button (■).")
          : this.#trans.__('It has not stopped yet: ranks that do not react soon are ended.')
      );
    }, PATIENCE);
  }

  #resetStop(): void {
    clearTimeout(this.#asked);
    this.#stop.disabled = false;
    setText(this.#stop, this.#trans.__('Stop'));
    setText(this.#hint, '');
  }

  #words(state: Run['state'] | 'unknown'): string {
    switch (state) {
      case 'unknown':
        return this.#trans.__('Ended');
      case 'waiting':
        return this.#trans.__('Waiting for its turn');
      case 'running':
        return this.#trans.__('Running');
      case 'ok':
        return this.#trans.__('Finished');
      case 'error':
        return this.#trans.__('Failed');
      default:
        return this.#trans.__('Stopped');
    }
  }
}
