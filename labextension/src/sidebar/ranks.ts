/* The ranks of an opened cluster: the notebook's own view, with the chosen rank's output live. */

import type { Entry, LogChunk } from '../api.ts';
import { element } from '../dom.ts';
import type { Action } from '../snapshot.ts';
import { release, render } from '../view.ts';
import type { Translation } from '../words.ts';
import { setSentence } from './sentence.ts';

/** Characters of output that are kept; the log has it all. */
const MOST = 100_000;

/** Follows what a rank writes, until what it returns is called; `anew` pieces begin from the top. */
export type Follow = (
  cluster: string,
  rank: number,
  take: (chunk: LogChunk, anew: boolean) => void
) => () => void;

export class Ranks {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #cluster: string;
  readonly #follow: Follow;
  readonly #stop: () => void;
  readonly #view = element('div', 'jsky-card-view');
  readonly #note = element('div', 'jsky-nothing jsky-quiet');
  #entry: Entry | null = null;
  #rank: number | null = null;
  #text = '';
  #end: string | null = null;
  #run: string | undefined;
  #unfollow: (() => void) | null = null;

  constructor(trans: Translation, cluster: string, follow: Follow, stop: () => void) {
    this.#trans = trans;
    this.#cluster = cluster;
    this.#follow = follow;
    this.#stop = stop;
    this.element = element('div', '', {}, this.#view, this.#note);
  }

  /** Shows the ranks of a cluster; with null it shows nothing, follows nothing and costs nothing. */
  show(entry: Entry | null): void {
    this.#entry = entry;
    if (entry?.snapshot) {
      const run = entry.snapshot.run?.id;
      // What has come to its end begins again with the next run.
      if (!this.#unfollow || (this.#end !== null && run !== this.#run)) {
        this.#watch(this.#rank ?? entry.snapshot.output.rank);
      }
      this.#run = run;
      this.#draw();
    } else {
      this.#forget();
      release(this.#view);
      setSentence(this.#note, entry && this.#trans.__('Nothing is known of its ranks now.'));
    }
  }

  #draw(): void {
    const snapshot = this.#entry?.snapshot;
    if (snapshot && this.#rank !== null) {
      const own = snapshot.output.rank === this.#rank ? snapshot.output.text : '';
      const output = { rank: this.#rank, text: this.#text || own };
      // What it costs is said of the cluster as a whole.
      const cluster = { ...snapshot.cluster, price: null, cost: null };
      render(this.#view, { ...snapshot, cluster, output }, (action) => this.#act(action), this.#trans);
      setSentence(this.#note, this.#end);
    }
  }

  #act(action: Action): void {
    if (action.kind === 'stop') {
      this.#stop();
    } else {
      this.#watch(action.rank);
      this.#draw();
    }
  }

  #watch(rank: number): void {
    this.#forget();
    this.#rank = rank;
    let drawing = false;
    const unfollow = this.#follow(this.#cluster, rank, ({ text, end }, anew) => {
      if (this.#unfollow !== unfollow) {
        return;
      }
      this.#text = (anew ? text : this.#text + text).slice(-MOST);
      this.#end = end;
      if (!drawing) {
        drawing = true;
        requestAnimationFrame(() => {
          drawing = false;
          this.#draw();
        });
      }
    });
    this.#unfollow = unfollow;
  }

  #forget(): void {
    this.#unfollow?.();
    this.#unfollow = null;
    this.#text = '';
    this.#end = null;
  }
}
