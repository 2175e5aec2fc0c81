/* The plugin that provides the clusters to the other plugins. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Client } from './client.ts';
import { Clusters, IClusters } from './clusters.ts';
import { Settings } from './settings.ts';

const plugin: JupyterFrontEndPlugin<IClusters> = {
  id: 'jupyter-sky:clusters',
  description: 'Asks the server which clusters there are.',
  autoStart: true,
  provides: IClusters,
  optional: [ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ): IClusters => {
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const settings = new Settings();
    if (registry) {
      settings.load(registry, plugin.id).catch(console.error);
    }
    const { events, serverSettings } = app.serviceManager;
    return new Clusters(new Client(serverSettings, trans), settings, events.stream);
  }
};

export default plugin;
