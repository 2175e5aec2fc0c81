/* The ranks of an opened cluster: the panel's view, with live output of the selected rank. */

import type { Entry, LogChunk } from '../api.ts';
import { element } from '../dom.ts';
import type { Action, Ask } from '../action.ts';
import { Tail } from '../tail.ts';
import { Usage } from '../usage.ts';
import { release, render } from '../view.ts';
import type { Translation } from '../words.ts';
import { isPossible } from './actions.ts';
import { LogColumn } from './log_column.ts';
import { setSentence } from '../sentence.ts';

/** Follows the logs of ranks, which are named as in `0,2-3`, until the function that it returns is
    called: no chunk comes after that, nor before it has returned. A chunk that `isFirst` comes after a
    (re)connection, and begins with lines that may have come before. */
export type Follow = (
  cluster: string,
  ranks: string,
  onChunk: (chunk: LogChunk, isFirst: boolean) => void
) => () => void;

export class Ranks {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #cluster: string;
  readonly #follow: Follow;
  readonly #do: (action: 'interrupt' | 'where') => void;
  readonly #ask: Ask;
  readonly #usage = new Usage();
  readonly #view = element('div', 'jsky-card-view');
  readonly #note = element('div', 'jsky-nothing jsky-quiet');
  #entry: Entry | null = null;
  #log: LogColumn | null = null;
  #rank: number | null = null;
  #tail: Tail | null = null;
  #end: string | null = null;
  #run: string | undefined;
  #unfollow: (() => void) | null = null;

  constructor(
    trans: Translation,
    cluster: string,
    follow: Follow,
    act: (action: 'interrupt' | 'where') => void,
    ask: Ask
  ) {
    this.#trans = trans;
    this.#cluster = cluster;
    this.#follow = follow;
    this.#do = act;
    this.#ask = ask;
    this.element = element('div', '', {}, this.#view, this.#note);
  }

  /** The rank whose output is shown, or the head. */
  get selected(): number {
    return this.#rank ?? 0;
  }

  /** Shows the ranks of a cluster; with null it shows and follows nothing. */
  show(entry: Entry | null): void {
    this.#entry = entry;
    if (entry?.snapshot) {
      const run = entry.snapshot.run?.id;
      // An ended log is followed again when the next run begins.
      if (!this.#unfollow || this.#log || (this.#end !== null && run !== this.#run)) {
        this.#startFollowing(this.#rank ?? entry.snapshot.output.rank);
      }
      this.#run = run;
      this.#draw();
    } else {
      this.#showLog(entry && isPossible('log', entry) ? entry : null);
    }
  }

  /** Shows the output of ranks if no kernel reports them; with null, nothing. */
  #showLog(entry: Entry | null): void {
    if (!entry) {
      this.#stopFollowing();
      release(this.#view);
      setSentence(this.#note, null);
    } else if (!this.#log) {
      this.#stopFollowing();
      const log = new LogColumn(this.#trans, this.#trans.__('Log of all ranks'), true);
      release(this.#view);
      this.#view.append(log.element);
      this.#log = log;
      this.#unfollow = this.#follow(this.#cluster, 'all', ({ entries, end }, isFirst) => {
        if (isFirst) {
          log.clear();
        }
        log.add(entries);
        setSentence(this.#note, end ?? this.#trans.__('No notebook is connected: this is its log.'));
      });
    }
  }

  #draw(): void {
    const snapshot = this.#entry?.snapshot;
    if (snapshot && this.#rank !== null) {
      const own = snapshot.output.rank === this.#rank ? snapshot.output.text : '';
      const output = { rank: this.#rank, text: this.#tail?.text || own };
      // The card shows the cost already.
      const cluster = { ...snapshot.cluster, price: null, cost: null };
      const ask = this.#entry?.kernels.length ? this.#ask : null;
      const shown = { ...snapshot, cluster, output };
      const place = { kind: 'sidebar' as const, ask, usage: this.#usage };
      render(this.#view, shown, (action) => this.#act(action), this.#trans, place);
      setSentence(this.#note, this.#end);
    }
  }

  #act(action: Action): void {
    if (action.kind === 'stop') {
      this.#do('interrupt');
    } else if (action.kind === 'where') {
      this.#do('where');
    } else if (action.kind === 'select' && action.rank !== null) {
      this.#startFollowing(action.rank);
      this.#draw();
    }
  }

  #startFollowing(rank: number): void {
    this.#stopFollowing();
    this.#rank = rank;
    const tail = new Tail(() => this.#draw());
    this.#tail = tail;
    this.#unfollow = this.#follow(this.#cluster, String(rank), (chunk, isFirst) => {
      tail.add(chunk, isFirst);
      this.#end = chunk.end;
    });
  }

  #stopFollowing(): void {
    this.#unfollow?.();
    this.#unfollow = null;
    this.#log?.element.remove();
    this.#log = null;
    this.#tail = null;
    this.#end = null;
  }
}
