/* The log of a cluster in a tab of its own, live. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import type { Entry } from '../api.ts';
import { element } from '../dom.ts';
import { keepKeys } from '../keys.ts';
import { LogPane } from '../sidebar/log.ts';
import { plain } from '../text.ts';
import type { IClusters } from './clusters.ts';
import { follow } from './follow.ts';
import { icon, iconOf } from './icons.ts';

/** Milliseconds between two files to save: of more than ten at once, Chromium drops the rest. */
const PAUSE = 100;

const opened = new Set<string>();

/** Opens the log of a cluster, or shows its existing tab. */
export function openLog(
  { shell }: JupyterFrontEnd,
  clusters: IClusters,
  entry: Entry,
  trans: TranslationBundle
): void {
  const id = `jupyter-sky-log-${entry.id}`;
  if (!opened.has(id)) {
    const widget = new MainAreaWidget({ content: new Log(clusters, entry, trans) });
    widget.toolbar.hide(); // the log has its own; an empty one is a line above it
    widget.id = id;
    widget.title.label = trans.__('Log of %1', plain(entry.name));
    widget.title.icon = iconOf('log');
    widget.title.closable = true;
    shell.add(widget, 'main');
    // The main area of Notebook 7 only has room for the notebook.
    if (!widget.isAttached) {
      shell.add(widget, 'down');
    }
    opened.add(id);
    widget.disposed.connect(() => opened.delete(id));
  }
  shell.activateById(id);
}

class Log extends Widget {
  readonly #clusters: IClusters;
  readonly #cluster: string;
  readonly #pane: LogPane;
  readonly #giveKeysBack: () => void;

  constructor(clusters: IClusters, entry: Entry, trans: TranslationBundle) {
    const { client } = clusters;
    const pane = new LogPane({ trans, icon }, ranksOf(entry), {
      follow: (named, onChunk) => follow(client, entry.id, named, LogPane.lines, onChunk),
      download: (ranks) => void save(ranks.map((rank) => client.logFile(entry.id, rank)))
    });
    super({ node: element('div', 'jsky-log jsky-ours', {}, pane.element) });
    this.#clusters = clusters;
    this.#cluster = entry.id;
    this.#pane = pane;
    clusters.changed.connect(this.#onChanged, this);
    this.#giveKeysBack = keepKeys(this.node);
  }

  override dispose(): void {
    this.#clusters.changed.disconnect(this.#onChanged, this);
    this.#giveKeysBack();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.#pane.follow();
  }

  protected override onBeforeDetach(message: Message): void {
    this.#pane.release();
    super.onBeforeDetach(message);
  }

  #onChanged(): void {
    const ranks = ranksOf(this.#clusters.find(this.#cluster));
    if (ranks && ranks.length > 0) {
      this.#pane.know(ranks);
    }
  }
}

/** The ranks of a cluster; null if no kernel reports them. */
function ranksOf(entry: Entry | undefined): number[] | null {
  return entry?.snapshot?.ranks.map(({ rank }) => rank) ?? null;
}

/** Saves the content of addresses as files, as links do. */
async function save(addresses: readonly string[]): Promise<void> {
  for (const href of addresses) {
    const link = element('a', '', { href, download: '' });
    document.body.append(link);
    link.click();
    link.remove();
    await new Promise((passed) => setTimeout(passed, PAUSE));
  }
}
