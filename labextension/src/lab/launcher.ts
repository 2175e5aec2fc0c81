/* A card in the launcher for a new cluster. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { NEW } from './sidebar.ts';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:launcher',
  description: 'Offers a new cluster in the launcher.',
  autoStart: true,
  optional: [ILauncher, ITranslator],
  activate: (_: JupyterFrontEnd, launcher: ILauncher | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    launcher?.add({ command: NEW, args: { isLauncher: true }, category: trans.__('Other'), rank: 20 });
  }
};

export default plugin;
