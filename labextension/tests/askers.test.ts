import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OwnSessions } from '../src/cells/askers.ts';

/** What a browser keeps for a tab. */
function storage(items = new Map<string, string>()): Storage {
  return {
    getItem: (key: string) => items.get(key) ?? null,
    removeItem: (key: string) => items.delete(key),
    setItem: (key: string, value: string) => items.set(key, value)
  } as unknown as Storage;
}

test('a page knows the sessions of the one before it in its tab, and no other page does', () => {
  const items = new Map<string, string>();
  const page = new EventTarget();
  const sessions = new OwnSessions(storage(items), page);
  sessions.add('s1');
  const duplicated = new OwnSessions(storage(new Map(items)), new EventTarget());
  assert.ok(!duplicated.has('s1'), 'its notebooks are still open in the other tab');
  page.dispatchEvent(new Event('pagehide'));
  const again = new EventTarget();
  const later = new OwnSessions(storage(items), again);
  assert.ok(later.has('s1'));
  later.add('s2');
  again.dispatchEvent(new Event('pagehide'));
  const last = new OwnSessions(storage(items), new EventTarget());
  assert.deepEqual(['s1', 's2', 's3'].map((each) => last.has(each)), [true, true, false]);
});
