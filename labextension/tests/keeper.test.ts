import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { IClusters } from '../src/lab/clusters.ts';
import type { RunOutput } from '../src/cells/record.ts';
import { english } from '../src/words.ts';
import { sample } from './page.ts';

// These need a document when they are loaded.
const { Keeper } = await import('../src/cells/keeper.ts');
const { MissedRuns } = await import('../src/cells/missed.ts');
const { Texts } = await import('../src/cells/texts.ts');
const { outputOf } = await import('../src/cells/cells.ts');
const { Feed } = await import('../src/cells/feed.ts');
const { MIME } = await import('../src/cells/record.ts');

type Output = ReturnType<typeof outputOf>;
type Arguments = ConstructorParameters<typeof Keeper>;
type Panel = Parameters<InstanceType<typeof Texts>['ended']>[0];
type Strip = Parameters<InstanceType<typeof Keeper>['add']>[0];

/** Returns what keeps the runs in the cells of notebooks true. */
function parts(clusters: IClusters, feed: Arguments[1], cells: Arguments[2]) {
  const texts = new Texts(clusters, feed, cells, english as Arguments[4]);
  const keeper = new Keeper(clusters, feed, cells, texts, english as Arguments[4]);
  return { keeper, texts, missed: new MissedRuns(clusters, cells, texts) };
}

/** Returns a signal, and a function that emits it. */
function signal() {
  const slots: (() => void)[] = [];
  const changed = { connect: (slot: () => void) => void slots.push(slot) };
  return { changed, emit: () => slots.forEach((slot) => slot()) };
}

test('the end of a run is asked for again, unless nobody knows it', async (t) => {
  t.mock.method(performance, 'now', () => 60_000);
  const feed = new Feed();
  const { changed, emit: compare } = signal();
  let answer = { status: 409, message: 'the kernel does not answer' };
  let asked = 0;
  let state = 'running';
  const clusters = {
    changed,
    client: { record: () => (asked++, Promise.reject(answer)) },
    entries: [],
    find: () => ({ name: 'train', kernels: [{ id: 'k1' }], snapshot: null, state }),
    trouble: null
  } as unknown as IClusters;
  const cells = { cellOf: () => ({}) } as unknown as Arguments[2];
  const { keeper, texts } = parts(clusters, feed, cells);
  const snapshot = sample();
  const run = snapshot.run!.id;
  feed.take(snapshot, 'output');
  const strip = { run, hasEnd: false, snapshot, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  const noted = async () => {
    compare();
    compare(); // while the first answer is on its way
    await new Promise((resolve) => setImmediate(resolve));
    const { note, isLost } = feed.get(run)!;
    return [note, isLost, asked];
  };
  assert.deepEqual(await noted(), ['the kernel does not answer', false, 1]);
  assert.ok(texts.isIncomplete(strip));
  answer = { status: 404, message: 'nobody knows' };
  // The kernel was restarted, and is connected again.
  const mayGoOn = 'No kernel knows this run, which may go on: `%sky attach train` shows what runs.';
  assert.deepEqual(await noted(), [mayGoOn, false, 2]);
  assert.ok(!texts.isIncomplete(strip), 'nor what it has printed');
  state = 'ready';
  assert.deepEqual(await noted(), ['How this run ended is no longer known.', true, 3]);
  assert.ok(!texts.isIncomplete(strip));
  assert.deepEqual(await noted(), ['How this run ended is no longer known.', true, 3]);
});

test('a run whose kernel is gone has not ended before its nodes have said so', (t) => {
  t.mock.method(performance, 'now', () => 60_000);
  const feed = new Feed();
  const { changed, emit: compare } = signal();
  let state = 'unknown';
  const clusters = {
    changed,
    entries: [],
    find: () => ({ name: 'train', state, kernels: [], snapshot: null }),
    trouble: null
  } as unknown as IClusters;
  const cells = { cellOf: () => undefined } as unknown as Arguments[2];
  const { keeper } = parts(clusters, feed, cells);
  const snapshot = sample();
  feed.take(snapshot, 'output');
  const strip = { run: 'r1', hasEnd: false, snapshot, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  const told = (answer: string) => {
    state = answer;
    compare();
    const { note, isLost } = feed.get('r1')!;
    return [note, isLost];
  };
  const unknown = 'The kernel has ended; whether the run goes on is not known yet.';
  assert.deepEqual(told('unknown'), [unknown, false]);
  assert.deepEqual(told('starting'), [unknown, false]);
  const goesOn =
    'The kernel was restarted, and the run goes on: `%sky attach train` shows it in a new cell.';
  assert.deepEqual(told('running'), [goesOn, false]);
  const ended = 'The kernel ended before this run did: ';
  const shows = `${ended}\`%sky attach train\` shows in a new cell how the run ended.`;
  assert.deepEqual(told('ready'), [shows, true]);
  assert.deepEqual(told('lost'), [shows, true], 'it is asked no more');
});

test('a run whose end only the kernel tells of can have missing output', (t) => {
  const feed = new Feed();
  let kernels = [{ id: 'k1' }];
  const changed = { connect: () => {} };
  const clusters = { changed, find: () => ({ kernels }) } as unknown as IClusters;
  const cells = { cellOf: () => undefined } as unknown as Arguments[2];
  const { keeper, texts } = parts(clusters, feed, cells);
  const running = sample();
  feed.take(running, 'output');
  const ended = { ...running, run: { ...running.run!, state: 'ok' as const } };
  const strip = { run: 'r1', hasEnd: false, snapshot: ended, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  assert.ok(!texts.isIncomplete(strip));
  feed.take(ended, 'kernel');
  assert.ok(texts.isIncomplete(strip), 'the notebook was saved before that');
  const panel = { sessionContext: {} } as Panel;
  texts.comesHere('r1', panel.sessionContext);
  assert.ok(!texts.isIncomplete(strip));
  texts.ended({ sessionContext: {} } as Panel);
  assert.ok(!texts.isIncomplete(strip), 'another notebook was closed');
  texts.ended(panel);
  assert.ok(texts.isIncomplete(strip));
  // Its kernel is restarted while its cell is out of view, and so its strip not in the page.
  texts.comesHere('r1', panel.sessionContext);
  keeper.remove(strip);
  texts.ended(panel);
  keeper.add(strip);
  assert.ok(texts.isIncomplete(strip));
  kernels = [];
  assert.ok(!texts.isIncomplete(strip), 'nobody has it any more');
});

test('a run that is put into its cell has missing output, even if the kernel is heard from then on', (t) => {
  const { changed, emit: compare } = signal();
  const snapshot = sample();
  Object.assign(snapshot.run!, { cell: 'c1', background: false, shown: [0] });
  const entry = { kernels: [{ id: 'k1' }], snapshot, snapshot_kernel: 'k1' };
  const clusters = {
    changed,
    entries: [entry],
    find: () => entry,
    trouble: null
  } as unknown as IClusters;
  let outputs: object[] = [];
  const model = {
    id: 'c1',
    type: 'code',
    executionState: 'idle',
    outputs: { toJSON: () => outputs, fromJSON: (given: object[]) => void (outputs = given) }
  };
  const notebook = { content: { widgets: [{ model }] } };
  const cells = { cellOf: () => undefined, notebooksOf: () => [notebook] } as unknown as Arguments[2];
  const feed = new Feed();
  const { keeper, texts } = parts(clusters, feed, cells);
  compare();
  assert.equal(outputs.length, 1);
  feed.take(snapshot, 'kernel');
  const strip = { run: snapshot.run!.id, hasEnd: false, snapshot, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  assert.ok(texts.isIncomplete(strip));
});

test('the end of a run that was known before its cell was shown is put into it', (t) => {
  const running = sample();
  const ended = { ...running, run: { ...running.run!, state: 'ok' as const } };
  const asked = (known: typeof running, hasEnd: boolean) => {
    const runs: string[] = [];
    const record = async (_: string, run: string) => (runs.push(run), { snapshot: running });
    const clusters = { changed: { connect: () => {} }, client: { record } } as unknown as IClusters;
    const cells = { cellOf: () => ({}) } as unknown as Arguments[2];
    const feed = new Feed();
    const { keeper } = parts(clusters, feed, cells);
    const strip = { run: 'r1', hasEnd, snapshot: known, isVisible: true } as unknown as Strip;
    feed.take(known, 'kernel');
    keeper.add(strip);
    t.after(() => keeper.remove(strip));
    return runs;
  };
  assert.deepEqual(asked(ended, false), ['r1'], 'the notebook was saved before that');
  assert.deepEqual(asked(ended, true), []);
  assert.deepEqual(asked(running, false), []);
});

test('output that could not be had when the notebook was opened can be restored later', async (t) => {
  const feed = new Feed();
  const running = sample();
  const ended = { ...running, run: { ...running.run!, cell: 'c', state: 'ok' as const } };
  const failing = () => Promise.reject(new Error('the kernel does not answer'));
  const clusters = {
    changed: { connect: () => {} },
    client: { record: failing, runs: async () => ({ ended: [ended.run] }) },
    entries: [{ id: 'c1', kernels: [{ id: 'k1' }], snapshot: null }],
    find: () => ({ kernels: [{ id: 'k1' }] }),
    refresh: async () => {}
  } as unknown as IClusters;
  const cells = { cellOf: () => undefined } as unknown as Arguments[2];
  const { keeper, texts, missed } = parts(clusters, feed, cells);
  const model = { id: 'c', type: 'code', outputs: { toJSON: () => [] } };
  const panel = {
    content: { widgets: [{ model }] },
    context: { contentsModel: { last_modified: '1970-01-01T00:00:00Z' } },
    sessionContext: { session: { kernel: { id: 'k1' } } }
  } as unknown as Panel;
  t.mock.method(console, 'error', () => {});
  await missed.catchUp(panel);
  feed.take(running, 'output');
  const strip = { run: 'r1', hasEnd: false, snapshot: ended, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  feed.take(ended, 'kernel');
  assert.ok(texts.isIncomplete(strip));
});

test('what cannot be had of one run or cluster keeps no other from what was missed', async (t) => {
  const troubles = t.mock.method(console, 'error', () => {});
  const run = { ...sample().run!, state: 'ok' as const };
  const ended: { [cluster: string]: object[] } = {
    c2: [{ ...run, id: 'r1', cell: 'a' }, { ...run, id: 'r2', cell: 'b' }],
    c3: [{ ...run, id: 'r3', cell: 'c' }]
  };
  const asked: string[] = [];
  const clusters = {
    changed: { connect: () => {} },
    client: {
      record: (_: string, id: string) => (asked.push(id), Promise.reject(new Error('no answer'))),
      runs: async (id: string) => {
        if (!ended[id]) {
          throw new Error('no answer');
        }
        return { ended: ended[id] };
      }
    },
    entries: ['c1', 'c2', 'c3'].map((id) => ({ id, kernels: [{ id: 'k1' }], snapshot: null })),
    refresh: async () => {}
  } as unknown as IClusters;
  const { missed } = parts(clusters, new Feed(), {} as Arguments[2]);
  const model = (id: string) => ({ model: { id, type: 'code', outputs: { toJSON: () => [] } } });
  await missed.catchUp({
    content: { widgets: ['a', 'b', 'c'].map(model) },
    context: { contentsModel: { last_modified: '1970-01-01T00:00:00Z' } },
    sessionContext: { session: { kernel: { id: 'k1' } } }
  } as unknown as Panel);
  assert.deepEqual(asked, ['r1', 'r2', 'r3']);
  assert.equal(troubles.mock.callCount(), 4);
});

test('a copy of the notebook, whose cells have the same ids, gets none of its runs', async () => {
  const ended = { ...sample().run!, state: 'ok' as const, id: 'r2', cell: 'b' };
  const going = sample();
  going.run!.cell = 'a';
  const asked: string[] = [];
  const { changed, emit: compare } = signal();
  const clusters = {
    changed,
    client: {
      record: async () => ({ snapshot: { ...going, run: ended }, html: '', plain: '', text: '', cut: false }),
      runs: async (_: string, kernel: string) => (asked.push(kernel), { ended: kernel === 'k1' ? [ended] : [] })
    },
    entries: [
      { id: 'c1', kernels: [{ id: 'k1' }, { id: 'k2' }], snapshot: going, snapshot_kernel: 'k1' }
    ],
    refresh: async () => {}
  } as unknown as IClusters;
  const given: string[] = [];
  const notebook = (kernel: string) => {
    const widgets = ['a', 'b'].map((id) => {
      const outputs = { toJSON: () => [], fromJSON: () => given.push(`${kernel} ${id}`) };
      return { model: { id, type: 'code', executionState: 'idle', outputs } };
    });
    return {
      content: { widgets },
      context: { contentsModel: { last_modified: '1970-01-01T00:00:00Z' } },
      sessionContext: { session: { kernel: { id: kernel } } }
    } as unknown as Panel;
  };
  const panels: { [kernel: string]: Panel } = { k1: notebook('k1'), k2: notebook('k2') };
  const cells = { notebooksOf: (kernel: string) => [panels[kernel]] } as unknown as Arguments[2];
  const { missed } = parts(clusters, new Feed(), cells);
  compare();
  assert.deepEqual(given, ['k1 a'], 'what goes on');
  await missed.catchUp(panels['k2']!);
  await missed.catchUp(panels['k1']!);
  assert.deepEqual(given, ['k1 a', 'k1 b'], 'and what has ended');
  assert.deepEqual(asked, ['k2', 'k1']);
});

test('what several ranks have printed is restored where the record has more', async (t) => {
  const running = sample();
  running.run!.shown = [0, 10];
  const ended = { ...running, run: { ...running.run!, state: 'ok' as const } };
  const kept = async (printed: Output[]) => {
    const text = ' 0 │ one\n10 │ one\n 0 │ two\n';
    const record = async () => ({ snapshot: ended, html: '', plain: '', text, cut: false });
    const clusters = {
      changed: { connect: () => {} },
      client: { record },
      find: () => undefined
    } as unknown as IClusters;
    const beginning = { snapshot: running, html: '', plain: '', text: '', cut: false };
    let outputs = [outputOf(beginning, true), ...printed];
    const model = { outputs: { toJSON: () => outputs, fromJSON: (given: Output[]) => void (outputs = given) } };
    const cells = { cellOf: () => ({ model }) } as unknown as Arguments[2];
    const feed = new Feed();
    const { keeper, texts } = parts(clusters, feed, cells);
    const strip = { run: 'r1', hasEnd: false, snapshot: ended, isVisible: true } as unknown as Strip;
    feed.take(ended, 'kernel');
    keeper.add(strip);
    t.after(() => keeper.remove(strip));
    assert.ok(texts.isIncomplete(strip));
    await new Promise((resolve) => setImmediate(resolve));
    const data = outputs[0]!.data as unknown as { [type: string]: RunOutput };
    assert.equal(data[MIME]!.snapshot.run!.state, 'ok');
    return [texts.isIncomplete(strip), ...outputs.slice(1).map(({ text }) => text)];
  };
  const stream = (text: string) => ({ output_type: 'stream', name: 'stdout', text });
  const all = ' 0 │ one\n10 │ one\n 0 │ two\n';
  assert.deepEqual(await kept([stream(' 0 │ one\n10 │ one\n')]), [false, all]);
  assert.deepEqual(await kept([]), [false, all]);
  const otherwise = '10 │ one\n 0 │ one\n';
  assert.deepEqual(await kept([stream(otherwise)]), [true, otherwise], 'until the user asks for it');
});

test('the text of a run that was restored while it goes on is kept up to date', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  let now = 60_000;
  t.mock.method(performance, 'now', () => now);
  const snapshot = sample();
  snapshot.run!.shown = [0];
  let text: string | null = 'step 0\n';
  const record = async () => {
    if (text === null) {
      throw new Error('the kernel does not answer');
    }
    return { snapshot, html: '', plain: '', text, cut };
  };
  let cut = false;
  const entry = { kernels: [{ id: 'k1' }], snapshot, snapshot_kernel: 'k1' };
  const { changed, emit: compare } = signal();
  const clusters = {
    changed,
    client: { record },
    entries: [],
    find: () => entry,
    refresh: async () => {},
    trouble: null
  } as unknown as IClusters;
  let outputs: object[] = [outputOf({ snapshot, html: '', plain: '', text: '', cut: false }, true)];
  const model = {
    outputs: {
      toJSON: () => outputs,
      fromJSON: (given: object[]) => void (outputs = given),
      add: ({ text }: { text: string }) => {
        const last = outputs.at(-1) as { text: string };
        outputs = [...outputs.slice(0, -1), { ...last, text: last.text + text }];
      }
    }
  };
  const cells = { cellOf: () => ({ model }), notebooksOf: () => [] } as unknown as Arguments[2];
  const feed = new Feed();
  const { keeper, texts } = parts(clusters, feed, cells);
  feed.take(snapshot, 'output');
  let refreshed = 0;
  const refresh = () => refreshed++;
  const strip = { run: 'r1', hasEnd: false, snapshot, isVisible: true, refresh } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  compare();
  assert.ok(texts.isIncomplete(strip));
  await texts.restore(strip);
  const shown = async () => {
    now += 3000;
    t.mock.timers.tick(1000);
    await new Promise((resolve) => setImmediate(resolve));
    return outputs.slice(1).map((output) => (output as { text: string }).text);
  };
  assert.deepEqual(await shown(), ['step 0\n']);
  text = 'step 0\nstep 1\n';
  assert.deepEqual(await shown(), [text]);
  outputs = [...outputs, { output_type: 'display_data', text: 'a picture' }];
  text = 'step 0\nstep 1\nstep 2\n';
  assert.deepEqual(await shown(), [text, 'a picture'], 'which is not printed');
  assert.ok(!texts.isIncomplete(strip));
  text = null;
  await shown();
  assert.ok(texts.isIncomplete(strip), 'so that the user can ask, and see the log');
  text = 'step 0\nstep 1\nstep 2\nstep 3\n';
  assert.deepEqual(await shown(), [text, 'a picture']);
  assert.ok(!texts.isIncomplete(strip));
  assert.equal(refreshed, 3, 'once as it is first told of');
  const all = text;
  [text, cut] = ['step 3\nstep 4\n', true];
  assert.deepEqual(await shown(), [all, 'a picture'], 'there may be no end of it');
  assert.ok(texts.isIncomplete(strip));
  await texts.restore(strip);
  assert.deepEqual(await shown(), [`${all}step 4\n`, 'a picture']);
});
