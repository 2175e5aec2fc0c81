/* The user's current notebook: where lines are inserted and run, and its kernel. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard } from '@jupyterlab/apputils';
import {
  NotebookActions,
  type INotebookTracker,
  type Notebook,
  type NotebookPanel
} from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import type { Place } from '../sidebar/form.ts';
import type { Client } from './client.ts';
import { notify } from './notices.ts';

type Cell = NonNullable<Notebook['activeCell']>;

/** The line that loads the extension in a kernel. */
export const LOAD = '%load_ext jupyter_sky';

/** A line of a cell that does so; text and comments may mention it. */
const LOADS = /^[ \t]*%(re)?load_ext[ \t]+jupyter_sky\b/m;

export class Notebooks {
  /** Emitted when the current notebook changes, and when its kernel changes or becomes idle. */
  readonly kernelChanged = new Signal<this, void>(this);
  /** Emitted when the kernel of a notebook begins anew, before it becomes idle. */
  readonly kernelRestarted = new Signal<this, void>(this);
  readonly #app: JupyterFrontEnd;
  readonly #client: Client;
  readonly #tracker: INotebookTracker | null;
  readonly #trans: TranslationBundle;

  constructor(
    app: JupyterFrontEnd,
    client: Client,
    tracker: INotebookTracker | null,
    trans: TranslationBundle
  ) {
    this.#app = app;
    this.#client = client;
    this.#tracker = tracker;
    this.#trans = trans;
    const changed = () => this.kernelChanged.emit();
    tracker?.currentChanged.connect(changed);
    tracker?.widgetAdded.connect((_, { sessionContext }) => {
      sessionContext.kernelChanged.connect(changed);
      sessionContext.statusChanged.connect((_, status) => {
        if (status === 'restarting' || status === 'autorestarting') {
          this.kernelRestarted.emit();
        } else if (status === 'idle') {
          changed();
        }
      });
    });
  }

  get current(): NotebookPanel | null {
    return this.#tracker?.currentWidget ?? null;
  }

  /** The id of the kernel of the current notebook. */
  get kernel(): string | null {
    return this.current?.sessionContext.session?.kernel?.id ?? null;
  }

  /** Shows a notebook of this server. */
  go(path: string): void {
    void this.#app.commands.execute('docmanager:open', { path });
  }

  /** Inserts `%sky` or `%%sky` with these words into the notebook, or into a new one where none is
      open, and runs it if it is to start; loads the extension before, where that is missing. */
  async insert(words: string, place: Place): Promise<void> {
    const panel = this.current ?? (await this.#create());
    if (!panel) {
      const line = `${place === 'above' ? '%%sky' : '%sky'} ${words}`;
      Clipboard.copyToSystem(line);
      notify('info', this.#trans.__('No notebook is open. Copied: %1', line), this.#trans);
      return;
    }
    const { content } = panel;
    if (place === 'above' && content.activeCell?.model.type === 'code') {
      const source = content.activeCell.model.sharedModel;
      const code = source.getSource().replace(/^%%sky\b.*\n?/, '');
      source.setSource(`%%sky ${words}\n${code}`);
    } else {
      if (!isEmpty(content.activeCell)) {
        NotebookActions.insertBelow(content);
      }
      content.activeCell?.model.sharedModel.setSource(
        place === 'above' ? `%%sky ${words}\n` : `%sky ${words}`
      );
    }
    const load = this.#loadBefore(panel);
    this.#app.shell.activateById(panel.id);
    if (place === 'start') {
      const cell = content.activeCell!;
      await this.#run(panel, [...((await this.#isLoaded(panel)) ? [] : [load]), cell]);
    } else {
      content.mode = 'edit';
    }
  }

  /** Loads the extension in the current notebook, then runs the active cell if `again`. */
  async load(again: boolean): Promise<void> {
    const panel = this.current;
    if (panel) {
      const load = this.#loadBefore(panel);
      await this.#run(panel, again ? [load, panel.content.activeCell!] : [load]);
    }
  }

  /** Returns the cell that loads the extension; if there is none, one is inserted above the active
      cell, which stays active. */
  #loadBefore({ content }: NotebookPanel): Cell {
    const loads = content.widgets.find(
      ({ model }) => model.type === 'code' && LOADS.test(model.sharedModel.getSource())
    );
    if (loads) {
      return loads;
    }
    NotebookActions.insertAbove(content);
    const inserted = content.activeCell!;
    inserted.model.sharedModel.setSource(LOAD);
    NotebookActions.selectBelow(content);
    return inserted;
  }

  async #isLoaded({ sessionContext }: NotebookPanel): Promise<boolean> {
    await sessionContext.ready;
    const kernel = sessionContext.session?.kernel?.id;
    const found = kernel && (await this.#client.environment(kernel).catch(() => null));
    return Boolean(found && found.loaded);
  }

  async #run({ content, sessionContext }: NotebookPanel, cells: Cell[]): Promise<void> {
    await sessionContext.ready;
    await NotebookActions.runCells(content, cells, sessionContext);
  }

  /** Makes a notebook; returns null on a page that opens one elsewhere, as Notebook 7 does. */
  async #create(): Promise<NotebookPanel | null> {
    const { commands, serviceManager } = this.#app;
    await serviceManager.kernelspecs.ready;
    const kernelName = serviceManager.kernelspecs.specs?.default;
    await commands.execute('notebook:create-new', kernelName ? { kernelName } : {});
    await this.current?.context.ready;
    return this.current;
  }
}

function isEmpty(cell: Cell | null): boolean {
  return cell?.model.type === 'code' && cell.model.sharedModel.getSource().trim() === '';
}
