/* The user's current notebook: where lines are inserted, and its kernel. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, Notification } from '@jupyterlab/apputils';
import { NotebookActions, type INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import type { Place } from '../sidebar/form.ts';

const LOAD = '%load_ext jupyter_sky';

export class Notebooks {
  /** Emitted when the current notebook changes, and when its kernel changes or becomes idle. */
  readonly kernelChanged = new Signal<this, void>(this);
  readonly #app: JupyterFrontEnd;
  readonly #tracker: INotebookTracker | null;
  readonly #trans: TranslationBundle;

  constructor(app: JupyterFrontEnd, tracker: INotebookTracker | null, trans: TranslationBundle) {
    this.#app = app;
    this.#tracker = tracker;
    this.#trans = trans;
    const changed = () => this.kernelChanged.emit();
    tracker?.currentChanged.connect(changed);
    tracker?.widgetAdded.connect((_, { sessionContext }) => {
      sessionContext.kernelChanged.connect(changed);
      sessionContext.statusChanged.connect((_, status) => status === 'idle' && changed());
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

  /** Inserts `%sky` or `%%sky` with these words into the notebook, for the user to run. */
  insert(words: string, place: Place): void {
    const panel = this.current;
    if (!panel) {
      const line = `${place === 'above' ? '%%sky' : '%sky'} ${words}`;
      Clipboard.copyToSystem(line);
      Notification.info(this.#trans.__('No notebook is open. Copied: %1', line), { autoClose: 5000 });
      return;
    }
    const { content } = panel;
    if (place === 'above' && content.activeCell?.model.type === 'code') {
      const source = content.activeCell.model.sharedModel;
      const code = source.getSource().replace(/^%%sky\b.*\n?/, '');
      source.setSource(`%%sky ${words}\n${code}`);
    } else {
      NotebookActions.insertBelow(content);
      content.activeCell?.model.sharedModel.setSource(
        place === 'above' ? `%%sky ${words}\n` : `%sky ${words}`
      );
    }
    this.#loadBefore(panel);
    this.#app.shell.activateById(panel.id);
    content.mode = 'edit';
  }

  /** Inserts a cell that loads the extension above the active cell, unless a cell does so. */
  #loadBefore({ content }: NotebookPanel): void {
    const loads = content.widgets.some(({ model }) =>
      model.sharedModel.getSource().includes(LOAD)
    );
    if (!loads) {
      NotebookActions.insertAbove(content);
      content.activeCell?.model.sharedModel.setSource(LOAD);
      NotebookActions.selectBelow(content);
    }
  }
}
