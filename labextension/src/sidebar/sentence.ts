/* Sentences of the server for the user: what is to be typed stands between backticks. */

import { element, setShown } from '../dom.ts';
import { plain } from '../text.ts';

const shown = new WeakMap<HTMLElement, string>();

/** Shows a sentence, or hides the element if there is none. */
export function setSentence(node: HTMLElement, sentence: string | null): void {
  const text = plain(sentence ?? '');
  if (shown.get(node) === text) {
    return;
  }
  shown.set(node, text);
  setShown(node, text !== '');
  const parts = text.split('`');
  // A lone backtick is shown as it is.
  const marked = parts.length % 2 === 1 ? parts : [text];
  node.replaceChildren(
    ...marked.map((part, at) => (at % 2 ? element('code', 'jsky-code', {}, part) : part))
  );
}
