/* Sentences for the user: what is to be typed, and other code, stands between backticks. */

import { element, setShown } from './dom.ts';
import { plain, plainLines } from './text.ts';

const shown = new WeakMap<HTMLElement, string>();

/** Shows a sentence, or hides the element if there is none. */
export function setSentence(node: HTMLElement, sentence: string | null): void {
  setMarked(node, plain(sentence ?? ''));
}

/** Shows sentences with their lines, or hides the element if there are none. */
export function setSentences(node: HTMLElement, sentences: string | null): void {
  setMarked(node, plainLines(sentences ?? ''));
}

function setMarked(node: HTMLElement, text: string): void {
  if (shown.get(node) === text) {
    return;
  }
  shown.set(node, text);
  setShown(node, text !== '');
  node.replaceChildren(...text.split(/(?<=\n)/).flatMap(marked));
}

/** Returns a line in parts, of which every second one is code. */
function marked(line: string): (string | HTMLElement)[] {
  const parts = line.split('`');
  // A lone backtick is shown as it is.
  const paired = parts.length % 2 === 1 ? parts : [line];
  return paired.map((part, at) => (at % 2 ? element('code', 'jsky-code', {}, part) : part));
}
