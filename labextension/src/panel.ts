/* The view as a widget of the notebook: `jupyter_sky/notebook/panel/widget.py` is its other half.

   JupyterLab and Notebook 7 show a run with our extension, which is told here of each change;
   `cells/feed.ts` is its other half. Other pages show the widget itself. */

import type { Action, Ask } from './action.ts';
import { ask, type Kernel } from './kernel.ts';
import type { Rank } from './snapshot.ts';
import { release, render, type Snapshot } from './view.ts';

/** The event of the document that passes a snapshot to the extension. */
export const CHANGED = 'jupyter-sky:snapshot';

/** The part of the widget's model that anywidget provides. */
export interface Model {
  get(name: string): any;
  send(content: unknown): void;
  on(event: 'change' | 'msg:custom', heard: (content?: any) => void): void;
  off(event: 'change' | 'msg:custom', heard: (content?: any) => void): void;
  widget_manager?: { kernel?: Kernel | null };
}

/** Shows the panel in `el` and keeps it up to date; returns a function that ends this. */
function show({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const act = (action: Action) => {
    // Messages to a widget wait until the cell is over. Jupyter's own pages have ways around that: a
    // run that the kernel waits for is interrupted as by the notebook's own Stop, and anything else
    // goes over the control channel. Elsewhere the message waits, and the view says what to do.
    const kernel = model.widget_manager?.kernel;
    if (action.kind === 'stop' && !model.get('run')?.background && kernel?.interrupt) {
      void kernel.interrupt();
    } else if (!kernel || !ask(kernel, action)) {
      model.send(action);
    }
  };
  const questions = new Questions(model);
  const place = { kind: 'cell' as const, ask: questions.ask };
  const changed = () => render(el, snapshotOf(model), act, undefined, place);
  model.on('change', changed);
  changed();
  return () => {
    questions.end();
    model.off('change', changed);
    release(el);
  };
}

/** Asks the kernel about the cluster, in the same ways as for actions. */
class Questions {
  readonly ask: Ask = {
    history: (since) => this.#send({ about: 'history', since }),
    variables: () => this.#send({ about: 'variables' }),
    profile: () => this.#send({ about: 'profile' })
  };
  readonly #model: Model;
  readonly #waiting = new Map<string, { done(answer: any): void; failed(trouble: Error): void }>();
  readonly #heard = (content: any) => {
    const waiting = this.#waiting.get(content?.number);
    if (content?.kind !== 'answer' || !waiting) {
      return;
    }
    this.#waiting.delete(content.number);
    if (content.answer) {
      waiting.done(content.answer);
    } else {
      waiting.failed(new Error(content.trouble));
    }
  };

  constructor(model: Model) {
    this.#model = model;
    model.on('msg:custom', this.#heard);
  }

  end(): void {
    this.#model.off('msg:custom', this.#heard);
  }

  #send(question: object): Promise<any> {
    const model = this.#model;
    const number = `${Date.now()}-${Math.random()}`;
    const message = { kind: 'ask', cluster: model.get('cluster').id, number, question };
    return new Promise((done, failed) => {
      this.#waiting.set(number, { done, failed });
      const kernel = model.widget_manager?.kernel;
      if (!kernel || !ask(kernel, message)) {
        model.send(message);
      }
    });
  }
}

/** Tells the page's extension of each change; returns a function that ends this. */
function initialize({ model }: { model: Model }): () => void {
  const changed = () =>
    document.dispatchEvent(new CustomEvent(CHANGED, { detail: snapshotOf(model) }));
  model.on('change', changed);
  changed();
  return () => model.off('change', changed);
}

/** Returns the snapshot from its parts, each of which is sent when it changes. */
function snapshotOf(model: Model): Snapshot {
  const { rank, lines } = model.get('output');
  const { drop, keep, added } = model.get('more');
  return {
    version: 1,
    cluster: model.get('cluster'),
    run: model.get('run'),
    sent_bytes: model.get('sent_bytes'),
    nodes: model.get('nodes'),
    ranks: Array.from({ length: model.get('size') }, (_, at) => rankOf(model, at)),
    output: { rank: rank ?? -1, text: [...lines.slice(drop, drop + keep), ...added].join('\n') },
    others: [],
    curves: model.get('curves') ?? []
  };
}

/** A cache of assembled ranks, so that unchanged ranks are not shown again. */
const ranks = new WeakMap<object, { rest: object; rank: Rank }>();

/** Returns a rank from its two parts: usage and last line, and everything else. */
function rankOf(model: Model, at: number): Rank {
  const [use, rest] = [model.get(`use_${at}`), model.get(`rank_${at}`)];
  const known = ranks.get(use);
  if (known && known.rest === rest) {
    return known.rank;
  }
  const rank = { ...rest, ...use };
  ranks.set(use, { rest, rank });
  return rank;
}

export default { initialize, render: show };
