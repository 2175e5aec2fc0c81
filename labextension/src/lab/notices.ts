/* What the page tells the user beside what it shows: in notifications, and in dialogs to read. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { element } from '../dom.ts';
import { setSentences } from '../sentence.ts';
import { plain } from '../text.ts';

/** Characters of a notification that Lab shows. */
const LONGEST = 140;

/** Milliseconds that each kind stays. */
const STAYS = { success: 3000, info: 5000, error: 10_000 } as const;

/** Shows a sentence in a notification; one that is too long for it can be read in a dialog. */
export function notify(kind: keyof typeof STAYS, sentence: string, trans: TranslationBundle): void {
  // Notifications are only text, so code in them is quoted.
  const text = plain(sentence).replace(/`([^`]*)`/g, '“$1”');
  const title = kind === 'error' ? trans.__('This did not work') : trans.__('The whole message');
  const label = trans.__('Show all');
  const callback = () => void showText(title, sentence, trans);
  Notification[kind](text, {
    autoClose: STAYS[kind],
    actions: text.length > LONGEST ? [{ label, callback }] : []
  });
}

/** Shows an error in a notification. */
export function complain(trouble: unknown, trans: TranslationBundle): void {
  notify('error', (trouble as Error).message, trans);
}

/** Shows sentences in a dialog, until the user closes it. */
export async function showText(
  title: string,
  sentences: string,
  trans: TranslationBundle
): Promise<void> {
  const text = element('div', 'jsky-where jsky-where-alone', { tabindex: '0' });
  setSentences(text, sentences);
  // Of its own body a dialog makes a column, in which code would have lines to itself.
  const body = new Widget({ node: element('div', '', {}, text) });
  await showDialog({ title, body, buttons: [Dialog.okButton({ label: trans.__('Close') })] });
}
