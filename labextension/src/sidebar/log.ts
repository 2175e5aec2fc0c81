/* The live log of a rank that the user chooses. */

import type { LogChunk } from '../api.ts';
import { element } from '../dom.ts';
import { OutputPane } from '../output.ts';
import { Choice } from './choice.ts';
import { setSentence } from './sentence.ts';
import type { Tools } from './tools.ts';

/** Characters that are kept, at most. */
const MOST = 1_000_000;

type Follow = (rank: number, onChunk: (chunk: LogChunk, isFirst: boolean) => void) => () => void;

export class LogPane {
  /** How many lines are shown. */
  static readonly lines = 2000;

  readonly element: HTMLElement;
  readonly #follow: Follow;
  readonly #rank: Choice;
  readonly #end = element('div', 'jsky-nothing jsky-quiet', { role: 'status' });
  readonly #output: OutputPane;
  #text = '';
  #unfollow: (() => void) | null = null;

  constructor(tools: Tools, ranks: readonly number[], follow: Follow) {
    const { trans } = tools;
    this.#follow = follow;
    this.#output = new OutputPane(trans, LogPane.lines);
    this.#rank = new Choice(tools, trans.__('Whose log'), () => this.follow());
    for (const rank of ranks) {
      this.#rank.add(String(rank), trans.__('rank %1', rank));
    }
    this.#output.tools.append(this.#rank.element);
    this.element = element('div', 'jsky-log-pane', {}, this.#output.element, this.#end);
    setSentence(this.#end, null);
  }

  /** Follows the rank that is chosen. */
  follow(): void {
    this.release();
    const rank = Number(this.#rank.value);
    let drawing = false;
    const draw = () => {
      drawing = false;
      this.#output.show(rank, { rank, text: this.#text }, '');
    };
    const unfollow = this.#follow(rank, ({ text, end }, isFirst) => {
      if (this.#unfollow !== unfollow) {
        return;
      }
      this.#text = (isFirst ? text : this.#text + text).slice(-MOST);
      setSentence(this.#end, end);
      if (!drawing) {
        drawing = true;
        requestAnimationFrame(draw);
      }
    });
    this.#unfollow = unfollow;
    draw();
  }

  release(): void {
    this.#unfollow?.();
    this.#unfollow = null;
    this.#text = '';
  }
}
