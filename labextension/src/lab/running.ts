/* Clusters in Lab's own panel of what is running, with its buttons to end them. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRunningSessionManagers, type IRunningSessions } from '@jupyterlab/running';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { Entry } from '../api.ts';
import { endOf, leftOf, madeOf } from '../sidebar/facts.ts';
import { plain } from '../text.ts';
import { money, stateWord } from '../words.ts';
import { IClusters } from './clusters.ts';
import { commandOf } from './commands.ts';
import { skyIcon } from './icons.ts';
import { complain } from './notices.ts';
import { SHOW } from './sidebar.ts';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:running',
  description: 'Lists clusters among what is running.',
  autoStart: true,
  requires: [IClusters],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ) => {
    if (!managers) {
      return;
    }
    const { commands } = app;
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const end = async ({ id }: Entry) => {
      try {
        await clusters.client.down(id);
      } catch (trouble) {
        complain(trouble, trans);
      }
      await clusters.refresh();
    };
    const item = (entry: Entry): IRunningSessions.IRunningItem => ({
      label: () => plain(entry.name),
      labelTitle: () => {
        const parts = [
          madeOf(trans, entry),
          stateWord(trans, entry.state),
          entry.price !== null && trans.__('%1 an hour', money(entry.price)),
          leftOf(entry) !== null && endOf(trans, entry)?.text
        ];
        return parts.filter(Boolean).join(' · ');
      },
      detail: () => stateWord(trans, entry.state),
      icon: () => skyIcon,
      open: () => void commands.execute(SHOW, { cluster: entry.id }),
      shutdown: () => void commands.execute(commandOf('down'), { cluster: entry.id })
    });
    managers.add({
      name: trans.__('Clusters'),
      supportsMultipleViews: false,
      running: () => (clusters.entries ?? []).map(item),
      shutdownAll: () => {
        for (const entry of clusters.entries ?? []) {
          void end(entry);
        }
      },
      refreshRunning: () => void clusters.refresh(),
      // Not `changed`: Lab then renders its list again, which loses the focus.
      runningChanged: clusters.statesChanged,
      shutdownLabel: trans.__('End'),
      shutdownAllLabel: trans.__('End All'),
      shutdownAllConfirmationText: trans.__(
        'End all clusters? All variables on their ranks are lost.'
      )
    });
  }
};

export default plugin;
