/* Helps who runs `%%sky` before the extension is loaded: IPython can only say that there is no such
   magic, and nothing of ours is in the kernel to say more. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { IClusters } from './clusters.ts';
import { LOAD, Notebooks } from './notebooks.ts';

/** What IPython says of a magic that it does not know. */
const UNKNOWN = /magic.*`%%?sky` not found/;
/** A cell that runs only once the extension is loaded, or that loads it. */
const LOADED = /%(re)?load_ext jupyter_sky|%sky\b/;

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:unloaded',
  description: 'Offers to load jupyter_sky where a cell needs it.',
  autoStart: true,
  requires: [IClusters],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const notebooks = new Notebooks(app, clusters.client, tracker, trans);
    // At most one notice is there, of the notebook in front: it says "this notebook".
    let notice: string | null = null;
    const dismiss = () => {
      if (notice) {
        Notification.dismiss(notice);
        notice = null;
      }
    };
    tracker?.currentChanged.connect(dismiss);
    NotebookActions.executed.connect((_, { notebook, cell, success, error }) => {
      if (success && LOADED.test(cell.model.sharedModel.getSource())) {
        dismiss();
      }
      if (!UNKNOWN.test(error?.errorValue ?? '') || notebook !== notebooks.current?.content) {
        return;
      }
      const load = () => {
        notebook.activeCellIndex = notebook.widgets.indexOf(cell);
        void notebooks.load(true);
      };
      dismiss();
      notice = Notification.warning(
        trans.__('This notebook has not loaded jupyter_sky yet: %1 loads it.', LOAD),
        {
          autoClose: false,
          actions: [{ label: trans.__('Load it and run the cell again'), callback: load }]
        }
      );
    });
  }
};

export default plugin;
