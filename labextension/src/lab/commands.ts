/* The actions on a cluster as commands of Lab: for buttons, the palette, and other extensions. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, ICommandPalette, InputDialog } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import type { Entry } from '../api.ts';
import { ACTIONS, isPossible, labelOf, type Action } from '../sidebar/actions.ts';
import { labelsOf } from '../sidebar/facts.ts';
import { plain } from '../text.ts';
import { IClusters } from './clusters.ts';
import { Confirm } from './confirm.ts';
import { iconOf } from './icons.ts';
import { openLog } from './log.ts';
import { Notebooks } from './notebooks.ts';
import { complain, notify } from './notices.ts';
import { showWhere } from './where.ts';

/** The id of an action's command; the cluster's id is its argument `cluster`. */
export const commandOf = (action: Action) => `jupyter-sky:${action}`;

const ARGUMENTS = {
  type: 'object',
  properties: {
    cluster: {
      type: 'string',
      description: 'The id of the cluster; without it, that of the current notebook.'
    },
    rank: {
      type: 'number',
      description: 'The rank that it is about, where it is about one; without it, the head.'
    }
  }
} as const;

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:commands',
  description: 'Commands for what can be done to a cluster.',
  autoStart: true,
  requires: [IClusters],
  optional: [ICommandPalette, INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    palette: ICommandPalette | null,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const notebooks = new Notebooks(app, clusters.client, tracker, trans);
    const actions = new Actions(app, clusters, notebooks, trans);
    for (const action of ACTIONS) {
      const command = commandOf(action);
      app.commands.addCommand(command, {
        label: labelOf(trans, action),
        icon: iconOf(action),
        describedBy: { args: ARGUMENTS },
        isEnabled: ({ cluster }) => actions.candidates(action, cluster as string).length > 0,
        execute: ({ cluster, rank }) => actions.run(action, cluster as string, rank as number)
      });
      palette?.addItem({ command, category: trans.__('Clusters') });
    }
    clusters.statesChanged.connect(() => app.commands.notifyCommandChanged());
  }
};

export default plugin;

/** Runs the user's actions on clusters. */
class Actions {
  readonly #app: JupyterFrontEnd;
  readonly #clusters: IClusters;
  readonly #notebooks: Notebooks;
  readonly #trans: TranslationBundle;
  readonly #confirm: Confirm;

  constructor(
    app: JupyterFrontEnd,
    clusters: IClusters,
    notebooks: Notebooks,
    trans: TranslationBundle
  ) {
    this.#app = app;
    this.#clusters = clusters;
    this.#notebooks = notebooks;
    this.#trans = trans;
    this.#confirm = new Confirm(clusters.settings, trans);
  }

  /** The clusters on which an action is possible; only `cluster`, if it is given. */
  candidates(action: Action, cluster?: string): Entry[] {
    const possible = (this.#clusters.entries ?? []).filter((entry) => isPossible(action, entry));
    return cluster ? possible.filter(({ id }) => id === cluster) : possible;
  }

  async run(action: Action, cluster?: string, rank = 0): Promise<void> {
    const entry = await this.#choose(this.candidates(action, cluster));
    if (!entry) {
      return;
    }
    try {
      const said = await this.#do(action, entry, rank);
      if (said) {
        notify('success', said, this.#trans);
      }
    } catch (trouble) {
      complain(trouble, this.#trans);
    }
    await this.#clusters.refresh();
  }

  /** Returns the cluster of the current notebook, the only one, or the one that the user picks. */
  async #choose(entries: Entry[]): Promise<Entry | undefined> {
    const kernel = this.#notebooks.kernel;
    const own = entries.filter(({ kernels }) => kernels.some(({ id }) => id === kernel));
    const [only, ...others] = own.length > 0 ? own : entries;
    if (others.length === 0) {
      return only;
    }
    const labels = labelsOf(this.#trans, entries);
    const title = this.#trans.__('Which cluster?');
    const { value } = await InputDialog.getItem({ title, items: labels });
    return value === null ? undefined : entries[labels.indexOf(value)];
  }

  /** Shows a terminal; Notebook 7 has a page for each. */
  async #openTerminal(name: string): Promise<void> {
    if (PageConfig.getOption('notebookPage')) {
      window.open(this.#clusters.client.address(`terminals/${encodeURIComponent(name)}`));
    } else {
      await this.#app.commands.execute('terminal:open', { name });
    }
  }

  /** Runs an action; returns a sentence about the result, where it is not visible on the page. */
  async #do(action: Action, entry: Entry, rank: number): Promise<string | void> {
    const { client } = this.#clusters;
    switch (action) {
      case 'interrupt':
        await client.interrupt(entry.id, null);
        return;
      case 'where':
        await showWhere(entry.name, (await client.where(entry.id)).said, this.#trans);
        return;
      case 'restart':
        if (await this.#confirm.restart(entry)) {
          return (await client.restart(entry.id, null)).said;
        }
        return;
      case 'scale': {
        const size = await this.#confirm.scale(entry);
        if (size !== null) {
          return (await client.scale(entry.id, size.nodes, size.price)).said;
        }
        return;
      }
      case 'attach':
        return this.#notebooks.insert(`attach ${plain(entry.name)}`, 'cell');
      case 'log':
        return openLog(this.#app, this.#clusters, entry, this.#trans);
      case 'terminal': {
        const { terminal } = await client.terminal(entry.id, rank);
        await this.#openTerminal(terminal);
        return;
      }
      case 'copy':
        Clipboard.copyToSystem(entry.line ?? '');
        return this.#trans.__('Copied: %1', entry.line);
      case 'stop': {
        const { said } = await client.foreseeStop(entry.id);
        if (await this.#confirm.stop(entry, said)) {
          return (await client.stop(entry.id)).said;
        }
        return;
      }
      case 'start':
        if (await this.#confirm.start(entry)) {
          return (await client.start(entry.id, entry.running_price)).said;
        }
        return;
      default:
        if (await this.#confirm.down(entry)) {
          return (await client.down(entry.id)).said;
        }
    }
  }
}
