/* What each rank of a cluster is doing, in a dialog: also where no notebook is connected to it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { plain } from '../text.ts';
import { showText } from './notices.ts';

/** Shows the answer of a cluster, until the user closes it. */
export function showWhere(name: string, said: string, trans: TranslationBundle): Promise<void> {
  return showText(trans.__('What the ranks of %1 are doing', plain(name)), said, trans);
}
