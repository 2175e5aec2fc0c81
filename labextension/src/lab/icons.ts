/* Icons: our own for a cluster, and Lab's own for what Lab has. */

import {
  addIcon,
  caretDownEmptyIcon,
  caretDownIcon,
  caretRightIcon,
  closeIcon,
  copyIcon,
  downloadIcon,
  LabIcon,
  linkIcon,
  listIcon,
  notebookIcon,
  refreshIcon,
  runIcon,
  searchIcon,
  stopIcon,
  terminalIcon
} from '@jupyterlab/ui-components';
import type { IconName } from '../sidebar/tools.ts';

/* A cloud, and in it a head with two peers. */
export const skyIcon = new LabIcon({
  name: 'jupyter-sky:sky',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" stroke="#616161" stroke-width="2" stroke-linejoin="round" stroke-linecap="round">
    <path style="fill: none" d="M6.6 19.5a4.6 4.6 0 0 1-.5-9.18 6.4 6.4 0 0 1 12.2-.3 4.78 4.780 0 0 1-.6 9.48z"/>
    <path style="fill: none" d="M8.5 15.5l3.5-3 3.5 3"/>
  </g>
  <g class="jp-icon3" fill="#616161">
    <circle cx="12" cy="11.5" r="2"/>
    <circle cx="8.2" cy="15.5" r="1.7"/>
    <circle cx="15.8" cy="15.5" r="1.7"/>
  </g>
</svg>`
});

/* Off: it ends a cluster. A cross closes what is shown, and ends nothing. */
const offIcon = new LabIcon({
  name: 'jupyter-sky:off',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" stroke="#616161" stroke-width="2" stroke-linecap="round">
    <path style="fill: none" d="M12 4v8M7.5 6.8a7 7 0 1 0 9 0"/>
  </g>
</svg>`
});

/* More, or fewer. */
const scaleIcon = new LabIcon({
  name: 'jupyter-sky:scale',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" stroke="#616161" stroke-width="2">
    <path style="fill: none" d="M8 4v8M4 8h8M13 17h7M5 20L20 5"/>
  </g>
</svg>`
});

/* Machines that sleep: a square stops a run. */
const sleepIcon = new LabIcon({
  name: 'jupyter-sky:sleep',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3" stroke="#616161" stroke-width="2" stroke-linejoin="round">
    <path style="fill: none" d="M19.5 14.6A8 8 0 1 1 9.4 4.5a6.5 6.5 0 0 0 10.1 10.1z"/>
  </g>
</svg>`
});

/* No icon means two things: a test holds that. */
const ICONS: Record<IconName, LabIcon> = {
  add: addIcon,
  attach: linkIcon,
  choose: caretDownEmptyIcon,
  close: closeIcon,
  collapsed: caretRightIcon,
  copy: copyIcon,
  down: offIcon,
  download: downloadIcon,
  expanded: caretDownIcon,
  interrupt: stopIcon,
  log: listIcon,
  notebook: notebookIcon,
  restart: refreshIcon,
  scale: scaleIcon,
  sky: skyIcon,
  start: runIcon,
  stop: sleepIcon,
  terminal: terminalIcon,
  where: searchIcon
};

export function iconOf(name: IconName): LabIcon {
  return ICONS[name];
}

/** Returns a new element with the icon. */
export function icon(name: IconName): HTMLElement {
  return ICONS[name].element({ tag: 'span', className: 'jsky-icon' });
}

