import assert from 'node:assert/strict';
import { test } from 'node:test';
import { element } from '../src/dom.ts';
import { keepKeys } from '../src/keys.ts';
import { document, KeyboardEvent, place } from './page.ts';

test('keys that work in an element are its own, all others the page’s', () => {
  const button = element('button', '');
  const input = element('input', '');
  const root = element('div', '', {}, button, input);
  place().append(root);
  // As Lumino looks for it in Notebook 7, before the key gets to its target.
  let seen: boolean | null = null;
  const look = ({ target }: Event) => {
    seen = (target as Element).closest('[data-lm-suppress-shortcuts]') !== null;
  };
  document.addEventListener('keydown', look as EventListener, true);
  const isOurs = (target: HTMLElement, key: string, modifiers = {}) => {
    target.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, composed: true, ...modifiers }));
    return seen;
  };

  const giveBack = keepKeys(root);
  for (const key of ['Enter', ' ', 'ArrowDown', 'Escape']) {
    assert.equal(isOurs(button, key), true, key);
  }
  assert.equal(isOurs(button, 's', { ctrlKey: true }), false);
  assert.equal(isOurs(button, 'Enter', { shiftKey: true }), false);
  assert.equal(isOurs(button, 'x'), false);
  assert.equal(isOurs(input, 'x'), true);
  assert.equal(isOurs(input, 'X', { shiftKey: true }), true);
  assert.equal(isOurs(input, 's', { ctrlKey: true }), false);
  assert.equal(isOurs(document.body, 'Enter'), false);
  giveBack();
  assert.equal(isOurs(button, 'Enter'), false);
  document.removeEventListener('keydown', look as EventListener, true);
});
