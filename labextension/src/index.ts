/* The extension of JupyterLab and Notebook 7: a plugin for each place that shows clusters. */

import clusters from './lab/plugin.ts';
import commands from './lab/commands.ts';
import launcher from './lab/launcher.ts';
import running from './lab/running.ts';
import sidebar from './lab/sidebar.ts';
import status from './lab/status.ts';
import unloaded from './lab/unloaded.ts';

export default [clusters, commands, sidebar, running, status, launcher, unloaded];
