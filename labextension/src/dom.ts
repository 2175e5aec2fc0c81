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

/** A name in parts: where there is little room, lines end after its dots and underscores. */
export function breakable(name: string): (string | HTMLElement)[] {
  return name.split(/(?<=[._])(?=[^._])/).flatMap((part) => [part, element('wbr', '')]);
}

/** A fact to be shown, if there is one. */
export type Fact = string | false | null | undefined | 0;

/** Shows facts with a dot between two. Where there is little room, the last ones are left out. */
export function setFacts(node: HTMLElement, facts: Fact[], follows = false): void {
  const shown = facts.filter(Boolean);
  const parts = shown.map((fact, place) => (place || follows ? ` · ${fact}` : `${fact}`));
  if (node.textContent !== parts.join('')) {
    node.replaceChildren(...parts.map((part) => element('span', 'jsky-fact', {}, part)));
  }
}

/** Characters at the end of a name that are always shown: similar names differ there. */
const TAIL = 8;

/** What belongs to the character before it: accents, skin tones, and what joins two pictures. */
const GOES_ON = /^(\p{M}|\p{Emoji_Modifier}|\u200d)/u;

/** Shows a name, shortened in the middle if there is little room. */
export function setName(node: HTMLElement, name: string): void {
  if (node.textContent === name) {
    return;
  }
  const characters = [...name];
  let cut = characters.length > 2 * TAIL ? characters.length - TAIL : characters.length;
  while (cut > 0 && (GOES_ON.test(characters[cut] ?? '') || characters[cut - 1] === '\u200d')) {
    cut -= 1;
  }
  // The two parts stand in the direction in which the name is read.
  node.dir = 'auto';
  node.replaceChildren(
    element('span', 'jsky-name-start', {}, characters.slice(0, cut).join('')),
    element('span', 'jsky-name-end', {}, characters.slice(cut).join(''))
  );
}
