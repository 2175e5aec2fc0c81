/* A picture that comes as HTML from the kernel, made anew from what a picture needs: names of functions
   and files of ranks are in it, and nothing of it may run or load anything. */

import { SVG } from './curves.ts';
import { plain } from './text.ts';

/** Elements more than these are left out. */
const MOST = 20_000;

const HTML = 'http://www.w3.org/1999/xhtml';

/** The elements that are taken over; others go with all that is in them. */
const ELEMENTS = new Map([
  [SVG, new Set(['svg', 'rect', 'text', 'title'])],
  [
    HTML,
    new Set(['div', 'b', 'code', 'details', 'summary', 'table', 'tbody', 'tr', 'td', 'span'])
  ]
]);

/** What of them is taken over, where it is a word or a number: no address can be written so. */
const ATTRIBUTES = new Set([
  ...['x', 'y', 'width', 'height', 'rx', 'fill', 'text-anchor', 'font-size'],
  ...['role', 'aria-label']
]);
const WORD = /^[#\w.%-]{1,40}$/;

/** Returns what can be shown of a picture. */
export function pictureOf(html: string): DocumentFragment {
  // What is parsed so belongs to no page: no script of it runs, and nothing is loaded.
  const parsed = new DOMParser().parseFromString(html, 'text/html');
  const made = document.createDocumentFragment();
  let left = MOST;
  const copy = (from: Node, to: Node) => {
    for (const node of from.childNodes) {
      if (node.nodeType === 3) {
        to.appendChild(document.createTextNode(plain(node.textContent ?? '')));
      } else if (node.nodeType === 1 && left > 0) {
        const { namespaceURI, localName, attributes } = node as Element;
        if (!namespaceURI || !ELEMENTS.get(namespaceURI)?.has(localName)) {
          continue;
        }
        left -= 1;
        const copied = document.createElementNS(namespaceURI, localName);
        for (const { name, value } of attributes) {
          if (name === 'aria-label') {
            copied.setAttribute(name, plain(value));
          } else if (ATTRIBUTES.has(name) && WORD.test(value)) {
            copied.setAttribute(name, value);
          }
        }
        to.appendChild(copied);
        copy(node, copied);
      }
    }
  };
  copy(parsed.body, made);
  return made;
}
