/* What the page provides to the parts of the sidebar, which know nothing of Jupyter. */

import type { Translation } from '../words.ts';

export type IconName =
  | 'add'
  | 'attach'
  | 'choose'
  | 'close'
  | 'collapsed'
  | 'copy'
  | 'down'
  | 'download'
  | 'expanded'
  | 'interrupt'
  | 'log'
  | 'notebook'
  | 'restart'
  | 'scale'
  | 'sky'
  | 'start'
  | 'stop'
  | 'terminal'
  | 'where';

export interface Tools {
  trans: Translation;
  /** Returns a new element with one of the page's icons. */
  icon(name: IconName): HTMLElement;
}
