import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LogChunk } from '../src/api.ts';
import type { Client } from '../src/lab/client.ts';
import { follow } from '../src/lab/follow.ts';
import { chunk } from './page.ts';

interface Connection {
  onmessage(event: { data: string }): void;
  onclose(): void;
  close(): void;
}

/** Follows a log, and returns its connections, what to call to end that, and the chunks. */
function followed() {
  const connections: Connection[] = [];
  const live = () => {
    connections.push({ close: () => {} } as Connection);
    return connections.at(-1);
  };
  const chunks: [LogChunk, boolean][] = [];
  const client = { live } as unknown as Client;
  const unfollow = follow(client, 'c1', '0', 200, (...chunk) => void chunks.push(chunk));
  const say = (said: LogChunk) => connections.at(-1)!.onmessage({ data: JSON.stringify(said) });
  return { connections, chunks, unfollow, say };
}

test('who follows a log no more hears nothing more of it', () => {
  const { chunks, unfollow, say } = followed();
  say(chunk('one\n'));
  unfollow();
  say(chunk('two\n'));
  assert.deepEqual(chunks, [[chunk('one\n'), true]]);
});

test('a log whose cluster ends during a break stays, and is followed no more', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { connections, chunks, say } = followed();
  const close = () => {
    connections.at(-1)!.onclose();
    t.mock.timers.tick(60_000);
  };
  const shown = () => {
    const add = (text: string, [{ entries }, isFirst]: [LogChunk, boolean]) =>
      (isFirst ? '' : text) + entries.map((entry) => entry.text).join('');
    return [chunks.reduce(add, ''), chunks.at(-1)![0].end, connections.length];
  };
  say(chunk('one\n'));
  say(chunk('two\n'));
  close();
  say(chunk('two\n'));
  assert.deepEqual(shown(), ['two\n', null, 2]);
  close();
  say({ entries: [], end: 'that cluster no longer exists.' });
  close();
  assert.deepEqual(shown(), ['two\n', 'that cluster no longer exists.', 3]);
});
