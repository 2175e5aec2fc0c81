/* In the status bar: how many clusters there are, what they cost, how far their runs are, and when the
   next one ends. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { Bar } from '../bar.ts';
import { element, setAttribute, setShown, setText } from '../dom.ts';
import { keepKeys } from '../keys.ts';
import { leftOf, timeSpan, totalOf } from '../sidebar/facts.ts';
import type { Run } from '../snapshot.ts';
import { plain } from '../text.ts';
import { duration, percent } from '../words.ts';
import { IClusters } from './clusters.ts';
import { icon } from './icons.ts';
import { SHOW } from './sidebar.ts';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:status',
  description: 'Shows in the status bar how many clusters there are and what they cost.',
  autoStart: true,
  requires: [IClusters],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    bar: IStatusBar | null,
    translator: ITranslator | null
  ) => {
    if (!bar) {
      return;
    }
    const { commands } = app;
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const status = new Status(clusters, trans, () => void commands.execute(SHOW));
    bar.registerStatusItem('jupyter-sky:status', {
      item: status,
      align: 'left',
      rank: 60,
      isActive: () => status.isNeeded,
      activeStateChanged: clusters.changed
    });
  }
};

export default plugin;

class Status extends Widget {
  readonly #clusters: IClusters;
  readonly #trans: TranslationBundle;
  readonly #button: HTMLElement;
  readonly #text = element('span', 'jsky-status-text');
  readonly #progress = new Bar('jsky-progress');

  constructor(clusters: IClusters, trans: TranslationBundle, open: () => void) {
    const button = element('button', 'jsky-status', { type: 'button' }, icon('sky'));
    button.addEventListener('click', open);
    keepKeys(button);
    super({ node: element('div', 'jsky-ours', {}, button) });
    button.append(this.#text, this.#progress.element);
    this.#button = button;
    this.#clusters = clusters;
    this.#trans = trans;
    clusters.changed.connect(this.#show, this); // until it is disposed
  }

  get isNeeded(): boolean {
    const { entries, settings } = this.#clusters;
    return settings.values.statusBar && (entries?.length ?? 0) > 0;
  }

  #show(): void {
    const entries = this.#clusters.entries ?? [];
    const parts = [totalOf(this.#trans, entries)];
    const [next] = entries
      .map((entry) => ({ entry, left: leftOf(entry) ?? Infinity }))
      .sort((one, other) => one.left - other.left);
    if (next && next.left < Infinity) {
      const left = timeSpan(this.#trans, next.left);
      const end = next.entry.idle?.keeps_disks
        ? this.#trans.__('stops in %1', left)
        : this.#trans.__('ends in %1', left);
      parts.push(
        entries.length === 1 ? end : this.#trans.__('%1: %2', plain(next.entry.name), end)
      );
    }
    const text = parts.join(' · ');
    setText(this.#text, text);
    const progress = this.#showProgress(entries.map(({ snapshot }) => snapshot?.run ?? null));
    const title = [text, progress].filter(Boolean).join(' · ');
    setAttribute(this.#button, 'title', this.#trans.__('Show clusters: %1', title));
  }

  /** Shows the progress of the newest run that reports any; returns it as text. */
  #showProgress(runs: (Run | null)[]): string {
    const [run] = runs
      .filter((each) => each?.state === 'running' && each.progress !== null)
      .sort((one, other) => other!.started - one!.started);
    const progress = run?.progress ?? null;
    setShown(this.#progress.element, progress !== null);
    if (progress === null) {
      return '';
    }
    const part = percent(progress.part);
    const left = progress.left !== null && this.#trans.__('%1 left', duration(progress.left, false));
    this.#progress.show(progress.part, [part, left]);
    return [part, left].filter(Boolean).join(' · ');
  }
}
