/* The second line: what runs, for how long, what it costs; and Stop. */

import { element, setAttribute, setOptional, setShown, setText } from './dom.ts';
import type { Run, Snapshot } from './snapshot.ts';
import { plain } from './text.ts';
import { duration, money, size, span, type Translation } from './words.ts';

/** Milliseconds for a kernel to react to Stop before the user is told of another way. */
const PATIENCE = 1000;

export class RunLine {
  readonly element: HTMLElement;
  readonly stop: HTMLButtonElement;
  readonly #trans: Translation;
  readonly #state = element('span', 'jsky-run-state');
  readonly #title = element('span', 'jsky-title');
  readonly #elapsed = element('span', 'jsky-elapsed');
  readonly #facts = element('span', 'jsky-quiet');
  readonly #hint = element('div', 'jsky-hint', { role: 'status' });
  #run: Run | null = null;
  #since = 0;
  #clock: ReturnType<typeof setInterval> | undefined;
  #asked: ReturnType<typeof setTimeout> | undefined;

  constructor(trans: Translation, stop: (run: string) => void) {
    this.#trans = trans;
    this.stop = element('button', 'jsky-stop', { type: 'button' }) as HTMLButtonElement;
    this.stop.addEventListener('click', () => {
      if (this.#run) {
        this.#waitForStop();
        stop(this.#run.id);
      }
    });
    const facts = [this.#state, this.#elapsed, this.#title, this.#facts];
    this.element = element('div', '', {}, element('div', 'jsky-run', {}, ...facts), this.#hint);
    this.#resetStop();
  }

  show({ run, sent_bytes, cluster }: Snapshot): void {
    if (run?.id !== this.#run?.id || run?.state !== 'running') {
      this.#resetStop();
    }
    if (run?.id !== this.#run?.id || run?.seconds !== this.#run?.seconds) {
      this.#since = performance.now();
    }
    this.#run = run;
    this.#tick();
    this.#keepTime(run?.state === 'running');
    setAttribute(this.element, 'data-state', run?.state ?? null);
    setText(this.#state, run ? this.#words(run.state) : this.#trans.__('Nothing has run yet'));
    setOptional(this.#title, run && plain(run.title));
    setShown(this.stop, run?.state === 'running');
    const facts = [
      run && `${this.#trans._n('rank', 'ranks', run.ranks.length)} ${span(run.ranks)}`,
      sent_bytes > 0 && this.#trans.__('%1 sent', size(sent_bytes)),
      cluster.price !== null && this.#trans.__('%1 an hour', money(cluster.price)),
      cluster.cost !== null && this.#trans.__('%1 so far', money(cluster.cost))
    ];
    setText(this.#facts, facts.filter(Boolean).join(' · '));
  }

  summary(run: Run): string {
    return this.#words(run.state);
  }

  release(): void {
    this.#keepTime(false);
    clearTimeout(this.#asked);
  }

  /** Shows how long it has been running: seconds are counted here, with no message for each. */
  #tick(): void {
    if (!this.#run) {
      setOptional(this.#elapsed, null);
    } else if (this.#run.state === 'running') {
      const here = (performance.now() - this.#since) / 1000;
      setOptional(this.#elapsed, duration(this.#run.seconds + here, false));
    } else {
      setOptional(this.#elapsed, duration(this.#run.seconds, true));
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
    this.stop.disabled = true;
    setText(this.stop, this.#trans.__('Stopping…'));
    setText(this.#hint, '');
    this.#asked = setTimeout(() => {
      this.#resetStop();
      setText(
        this.#hint,
        this.#trans.__("The kernel is busy and does not react yet: use the notebook's own Stop (■).")
      );
    }, PATIENCE);
  }

  #resetStop(): void {
    clearTimeout(this.#asked);
    this.stop.disabled = false;
    setText(this.stop, this.#trans.__('Stop'));
    setText(this.#hint, '');
  }

  #words(state: Run['state']): string {
    switch (state) {
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
