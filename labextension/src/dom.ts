/* Helpers that touch the DOM only where it differs. Text always goes in as text, never as markup. */

/** Returns a new element; `name` is its class. */
export function element(
  tag: string,
  name: string,
  attributes: Record<string, string> = {},
  ...children: (Node | string)[]
): HTMLElement {
  const node = document.createElement(tag);
  node.className = name;
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function setText(node: Element, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Sets an attribute, or removes it if `value` is null. */
export function setAttribute(node: Element, name: string, value: string | null): void {
  if (value === null) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

export function setShown(node: HTMLElement, shown: boolean): void {
  if (node.hidden === shown) {
    node.hidden = !shown;
  }
}

/** Shows `text`, or hides the element if there is none. */
export function setOptional(node: HTMLElement, text: string | null): void {
  setShown(node, Boolean(text));
  setText(node, text ?? '');
}
