import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { ServerConnection } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import type { Clusters as Answer } from '../src/api.ts';
import { Client } from '../src/lab/client.ts';
import { Clusters, STATES_CHANGED } from '../src/lab/clusters.ts';
import { Settings } from '../src/lab/settings.ts';
import { english } from '../src/words.ts';
import { sampleEntry, settled } from './page.ts';

/** Lets what is due at once happen, but not what is due in seconds. */
async function soon(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) {
    await settled();
    mock.timers.tick(1);
  }
  await settled();
}

test('the server is asked as soon as it tells of another state', async (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const answers: ((answer: Answer) => void)[] = [];
  const client = { clusters: () => new Promise<Answer>((resolve) => answers.push(resolve)) };
  const settings = new Settings();
  const events = new Signal<unknown, { schema_id: string }>({});
  const clusters = new Clusters(client as unknown as Client, settings, events);
  const answer = async (state: 'running' | 'ready') => {
    answers.shift()!({
      version: 1,
      jupyter_sky: '0.1.0',
      trouble: '',
      clusters: [sampleEntry({ state })]
    });
    await soon();
    return clusters.find('c1')?.state;
  };

  await soon();
  assert.equal(await answer('running'), 'running');
  assert.equal(answers.length, 0, 'the next time is in seconds');
  events.emit({ schema_id: 'https://events.jupyter.org/jupyter_server/kernel_actions/v1' });
  await soon();
  assert.equal(answers.length, 0);
  events.emit({ schema_id: STATES_CHANGED });
  await soon();
  assert.equal(answers.length, 1);
  // The answer that is under way may be of before the second event.
  events.emit({ schema_id: STATES_CHANGED });
  events.emit({ schema_id: STATES_CHANGED });
  await soon();
  assert.equal(answers.length, 1, 'a slow server is not asked again before it answers');
  assert.equal(await answer('running'), 'running');
  assert.equal(answers.length, 1);
  const refreshed = clusters.refresh();
  assert.equal(await answer('running'), 'running');
  assert.equal(await answer('ready'), 'ready');
  await refreshed;
  assert.equal(answers.length, 0);
});

test('the server is asked again if an answer never comes, as after a sleep', async (t) => {
  const patience = new AbortController();
  t.mock.method(AbortSignal, 'timeout', () => patience.signal);
  const lost = (request: Request) =>
    new Promise<Response>((_, reject) =>
      request.signal.addEventListener('abort', () => reject(request.signal.reason))
    );
  const answer: Answer = { version: 1, jupyter_sky: '0.1.0', trouble: '', clusters: [sampleEntry()] };
  let isLost = true;
  const baseUrl = 'http://server.test/';
  const connection = ServerConnection.makeSettings({
    baseUrl,
    fetch: (async (request: Request) => (isLost ? lost(request) : Response.json(answer))) as typeof fetch
  });
  const client = new Client(connection, english as never);
  // All that is asked without the user, and asked again only after an answer.
  const asked = [
    client.clusters(),
    client.record('c1', 'r1'),
    client.runs('c1', 'k1'),
    client.ask('c1').history(0),
    client.environment('k1')
  ];
  await Promise.all([
    ...asked.map((each) => assert.rejects(each, /does not answer; what is shown here may be out of date/)),
    settled().then(() => patience.abort())
  ]);
  isLost = false;
  assert.equal((await client.clusters()).clusters.length, 1);
});
