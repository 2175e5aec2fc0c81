/* A view that is taken out of the page and put back elsewhere at once, as where a cell clears its output
   in each step of a loop: whoever clicks, reads or types in it notices nothing. */

/** What the page forgets of an element that is taken out of it. */
export interface Marks {
  focused: HTMLElement | null;
  scrolled: { element: Element; top: number; left: number }[];
}

/** Parts of a view that can be scrolled. */
const SCROLLS = '.jsky-ranks, .jsky-text, .jsky-where, .jsky-variables-place';

/** What can be clicked. */
const CONTROLS = 'button, a, summary, [role="option"]';

export function marksOf(root: HTMLElement): Marks {
  const { activeElement } = root.ownerDocument;
  return {
    focused: root.contains(activeElement) ? (activeElement as HTMLElement) : null,
    scrolled: [...root.querySelectorAll(SCROLLS)]
      .map((element) => ({ element, top: element.scrollTop, left: element.scrollLeft }))
      .filter(({ top, left }) => top > 0 || left > 0)
  };
}

export function restore({ focused, scrolled }: Marks): void {
  for (const { element, top, left } of scrolled) {
    element.scrollTo({ top, left, behavior: 'instant' });
  }
  const { activeElement, body } = focused?.ownerDocument ?? {};
  if (activeElement === body) {
    focused?.focus({ preventScroll: true });
  }
}

/** Lets a click count if `root` is moved between the press and the release of the button: a browser then
    forgets what was pressed. */
export function keepClicks(root: HTMLElement): void {
  let pressed: HTMLElement | null = null;
  const controlAt = ({ target }: Event) => (target as Element).closest<HTMLElement>(CONTROLS);
  root.addEventListener('pointerdown', (event) => {
    const isClick = event.button === 0 && event.pointerType === 'mouse';
    pressed = isClick ? controlAt(event) : null;
  });
  root.addEventListener('click', () => (pressed = null), true);
  root.addEventListener('pointerup', (event) => {
    const control = pressed;
    if (control && control === controlAt(event)) {
      // A click that the page does send comes at once.
      setTimeout(() => {
        if (pressed === control) {
          pressed = null;
          control.click();
        }
      });
    }
  });
}
