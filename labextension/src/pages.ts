/* Links to what the nodes of a cluster serve for the browser. */

import { element, setAttribute, setShown, setText } from './dom.ts';
import type { Page } from './snapshot.ts';
import { plain } from './text.ts';
import type { Translation } from './words.ts';

/** Returns the address of a path of Jupyter's server. */
export type Address = (path: string) => string;

export class PageLinks {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  #shown = '[]';

  constructor(trans: Translation, className: string) {
    this.#trans = trans;
    this.element = element('span', className);
    setShown(this.element, false);
  }

  show(pages: Page[], address: Address): void {
    // Compared as text, so that unchanged elements keep the focus.
    const shown = JSON.stringify(pages);
    if (this.#shown === shown) {
      return;
    }
    this.#shown = shown;
    const links = pages.map(({ label, path }) => {
      const href = address(path);
      const link = element('a', 'jsky-page', { href, target: '_blank', rel: 'noopener' });
      setText(link, plain(label));
      setAttribute(link, 'title', this.#trans.__('Open %1 in a new tab', plain(label)));
      return link;
    });
    this.element.replaceChildren(...links);
    setShown(this.element, links.length > 0);
  }
}
