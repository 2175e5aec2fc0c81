import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import type { Environment, LogChunk } from '../src/api.ts';
import type { Client } from '../src/lab/client.ts';
import type { IClusters } from '../src/lab/clusters.ts';
import { EnvironmentNote } from '../src/lab/environment.ts';
import { follow } from '../src/lab/follow.ts';
import type { Notebooks } from '../src/lab/notebooks.ts';
import { english } from '../src/words.ts';
import { chunk } from './page.ts';

const settled = () => new Promise((resolve) => setImmediate(resolve));

test('what the kernel of a notebook lacks is said until it is there', async () => {
  const lacks = { loaded: false, jupyter_sky: null, note: 'Type `%pip install jupyter-sky`.' };
  const has = { loaded: false, jupyter_sky: '0.1.0', note: 'Type `%load_ext jupyter_sky`.' };
  const older = { loaded: true, jupyter_sky: '0.0.9', note: 'Install the same in both.' };
  let found: Environment = lacks;
  let changed = () => {};
  let restarted = () => {};
  let asked = 0;
  const client = { environment: async () => (asked++, found) };
  const loaded: boolean[] = [];
  const load = async (again: boolean) => void loaded.push(again);
  const notebooks = {
    load,
    kernel: 'k1',
    kernelChanged: { connect: (slot: () => void) => (changed = slot) },
    kernelRestarted: { connect: (slot: () => void) => (restarted = slot) }
  };
  const clusters = { client, version: '0.1.0' } as unknown as IClusters;
  const note = new EnvironmentNote(clusters, notebooks as unknown as Notebooks, english);
  const said = () =>
    [...note.element.children]
      .filter((part) => !(part as HTMLElement).hidden)
      .map((part) => part.textContent)
      .join();
  const after = async (environment: Environment) => {
    found = environment;
    changed();
    await settled();
    return said();
  };

  assert.equal(await after(lacks), '', 'the sidebar is not visible yet');
  note.start();
  await settled();
  assert.equal(said(), 'Type %pip install jupyter-sky.');
  assert.equal(await after(older), 'Install the same in both.');
  assert.match(await after(has), /%load_ext jupyter_sky.*Load it/);
  note.element.querySelector('button')!.click();
  assert.deepEqual(loaded, [false], 'the cell that is active is not run');
  assert.equal(await after({ ...has, loaded: true }), '');
  const before = asked;
  assert.equal(await after(lacks), '', 'one that has it is not asked after each cell');
  assert.equal(asked, before);
  restarted();
  assert.match(await after(has), /Load it/, 'after a restart nothing is loaded');
  notebooks.kernel = 'k2';
  assert.equal(await after(lacks), 'Type %pip install jupyter-sky.');
});

test('a rank is followed again after a break, but not after its end', (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const sockets: { onmessage: Function; onclose: Function; closed: boolean }[] = [];
  const live = () => {
    const socket = { onmessage: () => {}, onclose: () => {}, closed: false, close: () => {} };
    socket.close = () => (socket.closed = true);
    sockets.push(socket);
    return socket;
  };
  const chunks: [string, boolean][] = [];
  const onChunk = ({ entries }: LogChunk, isFirst: boolean) =>
    void chunks.push([entries[0]!.text, isFirst]);
  const say = (text: string, end: string | null = null) =>
    sockets.at(-1)!.onmessage({ data: JSON.stringify(chunk(text, end)) });

  const stop = follow({ live } as unknown as Client, 'c1', '0', 200, onChunk);
  say('one\n');
  say('two\n');
  sockets[0]!.onclose();
  mock.timers.tick(10_000);
  assert.equal(sockets.length, 2);
  say('one\ntwo\n');
  say('', 'the cluster has ended');
  sockets[1]!.onclose();
  mock.timers.tick(10_000);
  assert.equal(sockets.length, 2);
  assert.deepEqual(chunks, [
    ['one\n', true],
    ['two\n', false],
    ['one\ntwo\n', true],
    ['', false]
  ]);
  stop();

  const end = follow({ live } as unknown as Client, 'c1', '0', 200, onChunk);
  end();
  assert.ok(sockets[2]!.closed);
  sockets[2]!.onclose();
  mock.timers.tick(10_000);
  assert.equal(sockets.length, 3);
});
