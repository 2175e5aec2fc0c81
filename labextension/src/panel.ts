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
    // Messages to a widget wait until the cell is over. Jupyter's own pages have ways around it: a
    // run that the kernel waits for is stopped as by the notebook's own Stop, and the rest is asked
    // for beside the cell. Elsewhere the message goes, and the view says what to do meanwhile.
    const kernel = model.widget_manager?.kernel;
    if (action.kind === 'stop' && !model.get('run')?.background && kernel?.interrupt) {
      void kernel.interrupt();
    } else if (!kernel || !ask(kernel, { ...action, panel: model.get('key') })) {
      model.send(action);
    }
  };
  const changed = () => render(el, snapshotOf(model), act);
  model.on('change', changed);
  changed();
  return () => {
    model.off('change', changed);
    release(el);
  };
}

/** Brings pictures to life. A notebook's file has but a picture of the panel once a run is over: a
    widget could not be shown when the file is opened again. As long as the page has the widget's
    model, the panel takes the picture's place; returns what ends that. */
function initialize({ model }: { model: Model }): () => void {
  const alive = new Map<HTMLElement, () => void>();
  const look = () => {
    alive.forEach((end, picture) => picture.isConnected || end());
    const pictures = document.querySelectorAll<HTMLElement>(`[data-jsky="${model.get('key')}"]`);
    for (const picture of pictures) {
      if (!alive.has(picture)) {
        const still = [...picture.childNodes];
        const end = show({ model, el: picture });
        alive.set(picture, () => {
          alive.delete(picture);
          end();
          picture.replaceChildren(...still);
        });
      }
    }
  };
  const observer = new MutationObserver(look);
  observer.observe(document.body, { childList: true, subtree: true });
  look();
  return () => {
    observer.disconnect();
    alive.forEach((end) => end());
  };
}

/** Puts the snapshot together again: each part travels by itself, when it has changed. */
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
