/* A picture that comes as HTML from the kernel, made anew from what a picture needs: names of functions
   and files of ranks are in it, and nothing of it may run or load anything. */

import { SVG } from './curves.ts';
import { plain } from './text.ts';

/** Elements more than these are left out. */
const MOST = 20_000;

const HTML = 'http://www.w3.org/1999/xhtml';

/** The allowed elements; others are removed with everything in them. */
const ELEMENTS = new Map([
  [SVG, new Set(['svg', 'rect', 'text', 'title'])],
  [
    HTML,
    new Set(['div', 'b', 'code', 'details', 'summary', 'table', 'tbody', 'tr', 'td', 'span'])
  ]
]);

/** The allowed attributes, if they are words or numbers, which cannot be addresses. */
const ATTRIBUTES = new Set([
  ...['x', 'y', 'width', 'height', 'rx', 'fill', 'text-anchor', 'font-size'],
  ...['role', 'aria-label']
]);
const WORD = /^[#\w.%-]{1,40}$/;

/** Returns the parts of a picture that are safe to show. */
export function pictureOf(html: string): DocumentFragment {
  // A parsed document belongs to no page: no script runs, and nothing is loaded.
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
