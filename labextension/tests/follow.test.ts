import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LogChunk } from '../src/api.ts';
import type { Client } from '../src/lab/client.ts';
import { follow } from '../src/lab/follow.ts';
import { chunk } from './page.ts';

interface Connection {
  onmessage(event: { data: string }): void;
  onclose(): void;
}

test('a log whose cluster ends during a break stays, and is followed no more', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const connections: Connection[] = [];
  const live = () => {
    connections.push({} as Connection);
    return connections.at(-1);
  };
  let [text, end]: [string, string | null] = ['', null];
  follow({ live } as unknown as Client, 'c1', '0', 200, (said, isFirst) => {
    const added = said.entries.map((entry) => entry.text).join('');
    text = isFirst ? added : text + added;
    end = said.end;
  });
  const say = (said: LogChunk) => connections.at(-1)!.onmessage({ data: JSON.stringify(said) });
  const close = () => {
    connections.at(-1)!.onclose();
    t.mock.timers.tick(60_000);
  };
  say(chunk('one\n'));
  say(chunk('two\n'));
  close();
  say(chunk('two\n'));
  assert.deepEqual([text, end, connections.length], ['two\n', null, 2]);
  close();
  say({ entries: [], end: 'that cluster no longer exists.' });
  close();
  assert.deepEqual([text, end, connections.length], ['two\n', 'that cluster no longer exists.', 3]);
});
