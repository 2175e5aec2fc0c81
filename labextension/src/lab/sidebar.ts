/* The sidebar: all clusters of the user, whichever notebook started them. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { addIcon, CommandToolbarButton, SidePanel } from '@jupyterlab/ui-components';
import { Panel } from '@lumino/widgets';
import { IClusters } from './clusters.ts';
import { icon, skyIcon } from './icons.ts';
import { Notebooks } from './notebooks.ts';
import { SidebarBody } from './body.ts';

export const SHOW = 'jupyter-sky:show';
export const NEW = 'jupyter-sky:new';
const REFRESH = 'jupyter-sky:refresh';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:sidebar',
  description: 'Shows all clusters in the sidebar.',
  autoStart: true,
  requires: [IClusters],
  optional: [ICommandPalette, ILayoutRestorer, INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const { commands, shell } = app;
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const notebooks = new Notebooks(app, clusters.client, tracker, trans);
    const body = new SidebarBody(commands, clusters, notebooks, { trans, icon });
    const content = new Panel();
    content.addWidget(body);
    const sidebar = new SidePanel({ content, ...(translator && { translator }) });
    sidebar.id = 'jupyter-sky-sidebar';
    sidebar.addClass('jsky-sidebar');
    sidebar.addClass('jsky-ours');
    sidebar.title.icon = skyIcon;
    sidebar.title.caption = trans.__('Clusters');
    sidebar.node.setAttribute('role', 'region');
    sidebar.node.setAttribute('aria-label', trans.__('Clusters'));

    const args = { type: 'object', properties: {} } as const;
    // Notebook 7.2 hides a sidebar that is visible already.
    const show = () => sidebar.isVisible || shell.activateById(sidebar.id);
    commands.addCommand(SHOW, {
      label: trans.__('Show Clusters'),
      icon: skyIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            cluster: { type: 'string', description: 'The id of the cluster to open.' }
          }
        }
      },
      execute: ({ cluster }) => {
        show();
        if (cluster) {
          body.reveal(cluster as string);
        }
      }
    });
    commands.addCommand(NEW, {
      label: ({ isLauncher }) => (isLauncher ? trans.__('Cluster') : trans.__('New Cluster…')),
      icon: ({ isLauncher }) => (isLauncher ? skyIcon : addIcon),
      describedBy: { args },
      execute: () => {
        show();
        body.openForm();
      }
    });
    commands.addCommand(REFRESH, {
      label: trans.__('Refresh Clusters'),
      describedBy: { args },
      execute: () => clusters.refresh()
    });
    sidebar.toolbar.addItem('total', body.total);
    sidebar.toolbar.addItem(NEW, new CommandToolbarButton({ commands, id: NEW, label: '' }));
    for (const command of [SHOW, NEW, REFRESH]) {
      palette?.addItem({ command, category: trans.__('Clusters') });
    }
    shell.add(sidebar, 'left', { rank: 250, type: 'Clusters' });
    restorer?.add(sidebar, sidebar.id);
  }
};

export default plugin;
