/* Buttons as those of Jupyter's toolbars: the page brings their element, `jp-button`. */

import { element } from '../dom.ts';
import type { IconName, Tools } from './tools.ts';

/** Returns a button that is an icon; `label` is what it says to a pointer and to a screen reader. */
export function iconButton(
  { icon }: Tools,
  name: IconName,
  label: string,
  press: () => void
): HTMLElement {
  const attributes = { appearance: 'stealth', 'aria-label': label, title: label };
  const button = element('jp-button', 'jsky-tool', attributes, icon(name));
  button.addEventListener('click', (event) => {
    event.stopPropagation();
    if (!button.hasAttribute('disabled')) {
      press();
    }
  });
  return button;
}

/** Returns a button with words; the `important` one is the usual choice. */
export function wordButton(label: string, important: boolean, press: () => void): HTMLButtonElement {
  const name = `jp-mod-styled ${important ? 'jp-mod-accept' : 'jp-mod-reject'}`;
  const button = element('button', name, { type: 'button' }, label);
  button.addEventListener('click', press);
  return button as HTMLButtonElement;
}
