/* Which keys are ours. A page like JupyterLab has shortcuts for nearly every key: in a notebook Enter
   begins to edit, the arrows go to other cells. While the focus is in one of our elements, the keys
   that work there are ours, and all others stay the page's: Ctrl+S saves wherever the focus is. */

const OURS = new Set([
  ...['Enter', ' ', 'Escape', 'ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight'],
  ...['Home', 'End', 'PageUp', 'PageDown']
]);

/** Jupyter ignores shortcuts while the target of a key has this attribute. */
const SUPPRESS = 'data-lm-suppress-shortcuts';

/** Keeps the keys that work in `root` from the page's shortcuts, until the function that is returned
    is called. */
export function keepKeys(root: HTMLElement): () => void {
  const page = root.ownerDocument.defaultView!;
  const decide = (event: KeyboardEvent) => {
    if (event.composedPath().includes(root)) {
      (event.target as Element).toggleAttribute(SUPPRESS, isOurs(event));
    }
  };
  // In the capture phase, as Notebook 7 handles keys before they reach their target.
  page.addEventListener('keydown', decide, true);
  return () => page.removeEventListener('keydown', decide, true);
}

function isOurs({ key, target, altKey, ctrlKey, metaKey, shiftKey }: KeyboardEvent): boolean {
  if (altKey || ctrlKey || metaKey) {
    return false;
  }
  return (OURS.has(key) && !shiftKey) || isTyping(target as Element);
}

function isTyping(target: Element): boolean {
  return target.matches('input, select, textarea');
}
