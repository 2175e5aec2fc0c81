/* The view as a widget of the notebook: `jupyter_sky/notebook/panel/widget.py` is its other half. */

import { ask, type Kernel } from './kernel.ts';
import { release, render, type Action, type Snapshot } from './view.ts';

/** What anywidget gives us of the widget's model. */
export interface Model {
  get(name: string): any;
  send(content: unknown): void;
  on(event: 'change', changed: () => void): void;
  off(event: 'change', changed: () => void): void;
  widget_manager?: { kernel?: Kernel | null };
}

/** Shows the panel in `el` and keeps it up to date; returns what ends that. */
function show({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const act = (action: Action) => {
    // Messages to a widget wait until the cell is over. Jupyter's own pages have ways around that: a
    // run that the kernel waits for is interrupted as by the notebook's own Stop, and anything else
    // goes over the control channel. Elsewhere the message waits, and the view says what to do.
    const kernel = model.widget_manager?.kernel;
    if (action.kind === 'stop' && !model.get('run')?.background && kernel?.interrupt) {
      void kernel.interrupt();
    } else if (!kernel || !ask(kernel, { ...action, panel: model.get('key') })) {
      model.send(action);
    }
  };
  const changed = () => render(el, snapshotOf(model), act);
  const leave = ({ key }: KeyboardEvent) => {
    if (key === 'Escape') {
      // To the notebook's cell, where the arrows go from cell to cell.
      el.parentElement?.closest<HTMLElement>('[tabindex]')?.focus();
    }
  };
  model.on('change', changed);
  el.addEventListener('keydown', leave);
  changed();
  return () => {
    el.removeEventListener('keydown', leave);
    model.off('change', changed);
    release(el);
  };
}

/** Shows the panel in place of its static views. Once a run has ended, a notebook's file has only a
    static view: a widget could not be shown when the file is opened again. As long as the page has
    the widget's model, the panel takes the view's place; returns what ends that. */
function initialize({ model }: { model: Model }): () => void {
  const alive = new Map<HTMLElement, () => void>();
  const replaceViews = () => {
    alive.forEach((end, view) => view.isConnected || end());
    const views = document.querySelectorAll<HTMLElement>(`[data-jsky="${model.get('key')}"]`);
    for (const view of views) {
      if (!alive.has(view)) {
        const still = [...view.childNodes];
        const end = show({ model, el: view });
        alive.set(view, () => {
          alive.delete(view);
          end();
          view.replaceChildren(...still);
        });
      }
    }
  };
  const observer = new MutationObserver(replaceViews);
  observer.observe(document.body, { childList: true, subtree: true });
  replaceViews();
  return () => {
    observer.disconnect();
    alive.forEach((end) => end());
  };
}

/** Returns the snapshot from its parts, each of which is sent when it has changed. */
function snapshotOf(model: Model): Snapshot {
  const { rank, lines } = model.get('output');
  const { drop, keep, added } = model.get('more');
  return {
    version: 1,
    cluster: model.get('cluster'),
    run: model.get('run'),
    sent_bytes: model.get('sent_bytes'),
    nodes: model.get('nodes'),
    ranks: Array.from({ length: model.get('size') }, (_, at) => model.get(`rank_${at}`)),
    output: { rank, text: [...lines.slice(drop, drop + keep), ...added].join('\n') }
  };
}

export default { initialize, render: show };
