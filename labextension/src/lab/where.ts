/* What each rank of a cluster is doing, in a dialog: also where no notebook is connected to it. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import type { Entry } from '../api.ts';
import { element } from '../dom.ts';
import { setSentences } from '../sentence.ts';
import { plain } from '../text.ts';

/** Shows the answer of a cluster, until the user closes it. */
export async function showWhere(
  { name }: Entry,
  said: string,
  trans: TranslationBundle
): Promise<void> {
  const text = element('div', 'jsky-where jsky-where-alone', { tabindex: '0' });
  setSentences(text, said);
  // Of its own body a dialog makes a column, in which code would have lines to itself.
  const body = new Widget({ node: element('div', '', {}, text) });
  await showDialog({
    title: trans.__('What the ranks of %1 are doing', plain(name)),
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
