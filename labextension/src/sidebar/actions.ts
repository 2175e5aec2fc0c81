/* The actions of the user on a cluster, and the row of buttons for them. */

import type { Entry } from '../api.ts';
import { element, setAttribute, setShown } from '../dom.ts';
import type { Translation } from '../words.ts';
import { iconButton } from './button.ts';
import type { Tools } from './tools.ts';

export type Action =
  | 'interrupt'
  | 'where'
  | 'restart'
  | 'scale'
  | 'attach'
  | 'log'
  | 'terminal'
  | 'copy'
  | 'stop'
  | 'start'
  | 'down';

export const ACTIONS: readonly Action[] = [
  'interrupt',
  'where',
  'restart',
  'scale',
  'attach',
  'log',
  'terminal',
  'copy',
  'stop',
  'start',
  'down'
];

/** The label of an action. */
export function labelOf(trans: Translation, action: Action): string {
  switch (action) {
    case 'interrupt':
      return trans.__('Stop the current run');
    case 'where':
      return trans.__('Show what each rank is doing…');
    case 'restart':
      return trans.__('Restart all ranks…');
    case 'scale':
      return trans.__('Change the number of nodes…');
    case 'attach':
      return trans.__('Attach to this notebook');
    case 'log':
      return trans.__('Open the log');
    case 'terminal':
      return trans.__('Open a terminal on the node of the selected rank');
    case 'copy':
      return trans.__('Copy the line that starts this cluster');
    case 'stop':
      return trans.__('Stop its machines and keep their disks…');
    case 'start':
      return trans.__('Start its machines again…');
    default:
      return trans.__('End this cluster…');
  }
}

/** Whether an action is possible in the state of a cluster. */
export function isPossible(action: Action, entry: Entry): boolean {
  const { state, line, stoppable } = entry;
  switch (action) {
    case 'interrupt':
    case 'where':
      return state === 'running';
    case 'scale': // which is refused while something runs
      return isUp(entry) && state !== 'running';
    case 'restart':
    case 'attach':
    case 'log':
    case 'terminal':
      return isUp(entry);
    case 'copy':
      return line !== null;
    case 'stop':
      return stoppable && (state === 'ready' || state === 'unknown');
    case 'start':
      return state === 'stopped';
    default:
      return state !== 'down';
  }
}

/** Whether there are nodes, and the registry or a kernel says where: an entry that cannot be read does
    not. */
function isUp({ state, created, kernels }: Entry): boolean {
  const isKnown = created !== null || kernels.length > 0;
  return isKnown && state !== 'down' && state !== 'starting' && state !== 'stopped';
}

/** The actions in the row of buttons; the others are beside the name. */
const IN_BAR: readonly Action[] = [
  'where',
  'restart',
  'scale',
  'attach',
  'log',
  'terminal',
  'copy',
  'stop'
];

export class ActionBar {
  readonly element: HTMLElement;
  readonly #buttons = new Map<Action, HTMLElement>();

  constructor(tools: Tools, act: (action: Action) => void) {
    for (const action of IN_BAR) {
      this.#buttons.set(action, actionButton(tools, action, act));
    }
    const label = tools.trans.__('Actions');
    this.element = element('div', 'jsky-actions', { role: 'toolbar', 'aria-label': label });
    this.element.append(...this.#buttons.values());
  }

  show(entry: Entry): void {
    for (const [action, button] of this.#buttons) {
      setAttribute(button, 'disabled', isPossible(action, entry) ? null : '');
      setShown(button, action !== 'stop' || entry.stoppable);
    }
  }
}

export function actionButton(
  tools: Tools,
  action: Action,
  act: (action: Action) => void
): HTMLElement {
  return iconButton(tools, action, labelOf(tools.trans, action), () => act(action));
}
