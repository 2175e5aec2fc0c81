import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { afterEach, test } from 'node:test';
import type { Ask } from '../src/action.ts';
import type { Entry, IdleTimeout, LogChunk } from '../src/api.ts';
import type { Page } from '../src/sidebar/card.ts';
import { costOf, endOf, freeName, labelsOf, madeOf, NAME, timeSpan, totalOf, upOf } from '../src/sidebar/facts.ts';
import { ClusterList } from '../src/sidebar/list.ts';
import { setSentence } from '../src/sentence.ts';
import { english } from '../src/words.ts';
import { chunk, document, frame, place, sample, sampleEntry, texts, textOf, tools, touched } from './page.ts';

const NOW = 1000 + 3723;

/** Nobody is asked before the user presses a button. */
const NOBODY = {} as Ask;

/** A list of clusters, and what it asks of its page. */
class Looker implements Page {
  readonly did: unknown[] = [];
  readonly follows = new Map<string, (chunk: LogChunk, isFirst: boolean) => void>();
  readonly list = new ClusterList(tools, this);
  readonly host = place();

  constructor(...entries: Entry[]) {
    lookers.push(this);
    this.host.append(this.list.element);
    this.show(...entries);
  }

  act = (...done: unknown[]) => void this.did.push(done);
  go = (path: string) => void this.did.push(path);
  address = (path: string) => `/user/ada/${path}`;
  ask = () => NOBODY;

  follow = (cluster: string, ranks: string, onChunk: (chunk: LogChunk, isFirst: boolean) => void) => {
    const key = `${cluster}:${ranks}`;
    this.follows.set(key, onChunk);
    return () => void this.follows.delete(key);
  };

  show(...entries: Entry[]): void {
    this.list.show(entries, null, NOW);
  }

  press(label: string): void {
    this.host.querySelector<HTMLElement>(`[aria-label="${label}"]`)!.click();
  }

  /** Opens the only card, or closes it. */
  toggle(): void {
    this.host.querySelector<HTMLElement>('.jsky-opener')!.click();
  }

  get followed(): string[] {
    return [...this.follows.keys()];
  }
}

const lookers: Looker[] = [];
afterEach(() => {
  lookers.splice(0).forEach((looker) => looker.show());
  document.body.replaceChildren();
});

test('a cluster says in few words what it is, who has it, what it costs and when it ends', () => {
  const { host, show } = bound(new Looker(sampleEntry({ state: 'ready', note: 'Run `%sky gc`.' })));
  assert.equal(textOf(host, '.jsky-name'), 'demo');
  assert.equal(textOf(host, '.jsky-card-first'), 'idle · 2 nodes × A100 · aws');
  assert.equal(textOf(host, '.jsky-user'), 'train.ipynb');
  assert.match(textOf(host, '.jsky-card-facts'), /\$16\.40 an hour · \$2\.05 so far/);
  assert.deepEqual(texts(host, '.jsky-fact'), ['up 1 h 02 min', 'ends in 4 min if it stays idle']);
  assert.ok(host.querySelector('.jsky-fact[data-soon]'));
  assert.equal(textOf(host, '.jsky-note'), 'Run %sky gc.');
  assert.deepEqual(texts(host, '.jsky-note code'), ['%sky gc']);
  assert.ok(!host.querySelector('.jsky-note[data-quiet]'), 'a warning');
  show(sampleEntry({ state: 'starting', note: 'installing torch' }));
  assert.equal(textOf(host, '.jsky-note[data-quiet]'), 'installing torch', 'no warning');
  show(sampleEntry({ price: null, cost: null, idle: null, created: null, kernels: [] }));
  assert.equal(
    [...host.querySelectorAll<HTMLElement>('.jsky-card-facts *')]
      .filter((node) => node.childElementCount === 0 && !node.hidden)
      .map((node) => node.textContent)
      .join(''),
    'running · 2 nodes × A100 · aws'
  );
  show(sampleEntry({ state: 'unknown', provider: '', nodes: null, gpu: null }));
  assert.equal(textOf(host, '.jsky-card-first'), 'not connected', 'of an entry that cannot be read');
});

test('pages of nodes are links, as long as a kernel leads there', () => {
  const { host, show } = bound(new Looker(sampleEntry()));
  const links = () => [...host.querySelectorAll<HTMLAnchorElement>('.jsky-page')];
  assert.equal(links().length, 0);
  const snapshot = sample();
  snapshot.cluster.pages = [{ label: 'Dask', path: 'jupyter-sky/forward/c1/dask/status' }];
  show(sampleEntry({ snapshot }));
  const [link] = links();
  assert.equal(link!.textContent, 'Dask');
  assert.equal(link!.getAttribute('href'), '/user/ada/jupyter-sky/forward/c1/dask/status');
  assert.equal(link!.getAttribute('target'), '_blank');
  assert.equal(link!.getAttribute('rel'), 'noopener');
  assert.equal(touched(host, () => show(sampleEntry({ snapshot }))).size, 0);
  show(sampleEntry({ snapshot, kernels: [] }));
  assert.equal(links().length, 0);
});

test('the words for times and money', () => {
  assert.deepEqual(
    [0, 59.9, 60, 3599, 3600, 86399, 90000, 604800].map((seconds) => timeSpan(english, seconds)),
    ['0 s', '59 s', '1 min', '59 min', '1 h 00 min', '23 h 59 min', '1 d 1 h', '7 d']
  );
  const entry = sampleEntry();
  assert.equal(madeOf(english, { ...entry, nodes: 1, gpu: null }), '1 node · aws');
  assert.equal(upOf(english, { ...entry, created: NOW + 5 }, NOW), 'up 0 s', 'clocks differ');
  assert.equal(costOf(english, { ...entry, price: null }), '$2.05 so far');
  assert.equal(
    costOf(english, { ...entry, price: null, cost: 1.5, unit: 'GPU hours' }),
    '1.50 GPU hours so far'
  );
  assert.equal(endOf(english, entry), null, 'it does not end while it works');
  const idle = { timeout: 1800, left: null, keeps_disks: false };
  const end = (changes: Partial<IdleTimeout>) =>
    endOf(english, { ...entry, state: 'unknown', idle: { ...idle, ...changes } })!.text;
  assert.equal(end({}), 'ends after 30 min idle');
  assert.equal(end({ keeps_disks: true }), 'stops after 30 min idle', 'it can be started again');
  assert.equal(end({ keeps_disks: true, left: 240 }), 'stops in 4 min if it stays idle');
  assert.equal(totalOf(english, [entry, entry]), '2 clusters · $32.80 an hour');
  assert.equal(totalOf(english, [{ ...entry, price: null }]), '1 cluster');
});

test('clusters with one name can be told apart in a choice among them', () => {
  const entry = sampleEntry({ name: 'train' });
  const labels = labelsOf(english, [
    { ...entry, id: 'c1', state: 'lost' },
    { ...entry, id: 'c2' },
    { ...entry, id: 'c3', nodes: 1 },
    { ...entry, id: 'c4', nodes: 1 },
    { ...entry, id: 'c5', name: 'other' },
    { ...entry, id: 'c6', name: 'other', state: 'down' }
  ]);
  assert.deepEqual(labels, [
    'train · lost',
    'train · running · 2 nodes × A100 · aws',
    'train · running · 1 node × A100 · aws · c3',
    'train · running · 1 node × A100 · aws · c4',
    'other · running',
    'other · ended'
  ]);
});

test('a card says what a cluster is at beside its runs, while a kernel knows', () => {
  const snapshot = sample();
  snapshot.cluster.note = 'writing back to `s3://photos`';
  const { host, show } = bound(new Looker(sampleEntry({ state: 'ready', snapshot })));
  const said = () => texts(host, '.jsky-card-said > :not([hidden])').at(-1);
  assert.equal(said(), 'writing back to s3://photos');
  show(sampleEntry({ state: 'ready', snapshot, kernels: [], idle: null }));
  assert.equal(said(), undefined);
});

test('a cluster beside another one gets a name that none has', () => {
  const named = (...names: string[]) => names.map((name) => sampleEntry({ name }));
  assert.equal(freeName('train', named('train', 'other-2')), 'train-2');
  assert.equal(freeName('train', named('train-2', 'train', 'train-3')), 'train-4');
  assert.match(freeName('t'.repeat(63), []), NAME);
});

test('clusters come and go, and what did not change is not touched', () => {
  const { host, show } = bound(new Looker(sampleEntry(), sampleEntry({ id: 'c2', name: 'other' })));
  const [first, second] = host.querySelectorAll('.jsky-card');
  assert.equal(touched(host, () => show(sampleEntry(), sampleEntry({ id: 'c2', name: 'other' }))).size, 0);
  show(sampleEntry({ id: 'c3', name: 'new' }), sampleEntry({ id: 'c2', name: 'other' }));
  assert.deepEqual(texts(host, '.jsky-name'), ['new', 'other']);
  assert.ok(!first!.isConnected);
  assert.equal(host.querySelectorAll('.jsky-card')[1], second);
  show();
  assert.equal(texts(host, '.jsky-card').length, 0);
  assert.match(textOf(host, '.jsky-empty'), /%%sky --nodes 2/);
});

test('a long name keeps its end, and is there as a whole for who asks', () => {
  const { host, show } = bound(new Looker(sampleEntry({ name: 'short' })));
  const parts = () => [textOf(host, '.jsky-name-start'), textOf(host, '.jsky-name-end')];
  const opener = host.querySelector('.jsky-opener')!;
  assert.deepEqual(parts(), ['short', '']);
  const name = 'an-experiment-that-differs-at-its-end-02';
  show(sampleEntry({ name }));
  assert.deepEqual(parts(), ['an-experiment-that-differs-at-it', 's-end-02']);
  assert.deepEqual([opener.getAttribute('title'), opener.getAttribute('aria-label')], [name, name]);
  assert.equal(textOf(host, '.jsky-name'), name);
});

test('of many clusters each has little room', () => {
  const { host, show } = bound(new Looker());
  const entries = (count: number) =>
    Array.from({ length: count }, (_, at) => sampleEntry({ id: `c${at}`, name: `n${at}` }));
  const isCompact = () => host.querySelector('.jsky-cards')!.hasAttribute('data-compact');
  show(...entries(8));
  assert.equal(isCompact(), false);
  show(...entries(9));
  assert.equal(isCompact(), true);
});

test('what keeps clusters from being seen is said instead of "none"', () => {
  const { host, list } = new Looker();
  list.show([], 'Jupyter’s server has no jupyter_sky: run `pip install jupyter-sky`.', NOW);
  assert.match(textOf(host, '[role=status]'), /run pip install/);
  assert.ok(host.querySelector<HTMLElement>('.jsky-empty')!.hidden);
});

test('an opened cluster shows its ranks, and the output of the chosen one live', async () => {
  const looker = new Looker(sampleEntry());
  const { host, follows } = looker;
  assert.deepEqual([looker.followed, texts(host, '[role=option]')], [[], []]);
  looker.toggle();
  assert.equal(texts(host, '[role=option]').length, 4);
  assert.deepEqual(looker.followed, ['c1:0']);
  assert.deepEqual(texts(host, '.jsky-text-line'), ['one', 'two'], 'of the snapshot meanwhile');

  follows.get('c1:0')!(chunk('two\nthr'), true);
  follows.get('c1:0')!(chunk('ee\n'), false);
  await frame();
  assert.deepEqual(texts(host, '.jsky-text-line'), ['two', 'three']);
  looker.show(sampleEntry());
  assert.deepEqual(texts(host, '.jsky-text-line'), ['two', 'three'], 'also after the next snapshot');

  host.querySelector<HTMLElement>('[data-rank="2"]')!.click();
  assert.deepEqual(looker.followed, ['c1:2']);
  follows.get('c1:2')!(chunk('I am 2\n', 'The cluster has ended.'), true);
  await frame();
  assert.deepEqual(texts(host, '.jsky-text-line'), ['I am 2']);
  assert.match(host.textContent!, /The cluster has ended/);
  looker.show(sampleEntry());
  assert.deepEqual(texts(host, '.jsky-text-line'), ['I am 2']);
  const next = sample();
  next.run!.id = 'r2';
  looker.show(sampleEntry({ snapshot: next }));
  assert.doesNotMatch(host.textContent!, /The cluster has ended/, 'it is followed again');

  looker.toggle();
  assert.deepEqual([looker.followed, texts(host, '[role=option]')], [[], []]);
});

test('nothing is followed while the list is not visible, or once the cluster is gone', () => {
  const looker = new Looker(sampleEntry());
  looker.toggle();
  looker.list.pause();
  assert.deepEqual(looker.followed, []);
  looker.show(sampleEntry());
  assert.deepEqual(looker.followed, ['c1:0']);
  looker.show();
  assert.deepEqual(looker.followed, []);
});

test('where no kernel tells of the ranks, their log is shown', async () => {
  const entry = sampleEntry({ snapshot: null, state: 'unknown' });
  const looker = new Looker(entry);
  looker.toggle();
  assert.deepEqual(looker.followed, ['c1:all']);
  looker.follows.get('c1:all')!(chunk('still here\n'), true);
  await frame();
  looker.show(entry);
  assert.deepEqual(texts(looker.host, '.jsky-text-line'), ['0still here']);
  assert.match(looker.host.textContent!, /No notebook is connected: this is its log/);
  looker.show(sampleEntry());
  assert.deepEqual(looker.followed, ['c1:0']);
  assert.equal(texts(looker.host, '[role=option]').length, 4);
  assert.doesNotMatch(looker.host.textContent!, /No notebook is connected/);
  looker.show(sampleEntry({ snapshot: null, state: 'starting' }));
  assert.deepEqual(looker.followed, []);
});

test('buttons do what they say, where it can be done', () => {
  const looker = new Looker(sampleEntry());
  const { did, host } = looker;
  looker.press('Stop the current run');
  looker.press('End this cluster…');
  looker.press('Go to a/train.ipynb (its kernel is busy)');
  looker.toggle();
  for (const label of ['Show what each rank is doing…', 'Restart all ranks…', 'Open the log', 'Open a terminal on the node of the selected rank']) {
    looker.press(label);
  }
  host.querySelector<HTMLElement>('[data-rank="2"]')!.click();
  looker.press('Open a terminal on the node of the selected rank');
  host.querySelector<HTMLElement>('.jsky-stop')!.click();
  host.querySelector<HTMLElement>('.jsky-ask-where')!.click();
  assert.deepEqual(did, [
    ['interrupt', 'c1', 0],
    ['down', 'c1', 0],
    'a/train.ipynb',
    ['where', 'c1', 0],
    ['restart', 'c1', 0],
    ['log', 'c1', 0],
    ['terminal', 'c1', 0],
    ['terminal', 'c1', 2],
    ['interrupt', 'c1', 2],
    ['where', 'c1', 2]
  ]);
  const whenIdle = ['Change the number of nodes…', 'Stop its machines and keep their disks…'];
  assert.deepEqual(disabledIn(host), whenIdle);
  // What runs is of a terminal, and the run that is shown of the notebook is over.
  const over = sample();
  over.run!.state = 'ok';
  looker.show(sampleEntry({ snapshot: over }));
  assert.ok(host.querySelector<HTMLElement>('.jsky-stop')!.hidden);
  const stop = host.querySelector<HTMLElement>('[aria-label="Stop the current run"]')!;
  assert.ok(!stop.hidden);
  looker.show(sampleEntry());
  assert.ok(stop.hidden, 'the view has its own');
  looker.show(sampleEntry({ state: 'ready' }));
  looker.press('Change the number of nodes…');
  assert.deepEqual(did.at(-1), ['scale', 'c1', 2]);
  looker.show(sampleEntry({ state: 'unknown', kernels: [], line: null }));
  assert.deepEqual(disabledIn(host), ['Show what each rank is doing…', 'Copy the line that starts this cluster']);
});

test('of a cluster whose entry cannot be read nothing is offered but its end', () => {
  const unreadable = { state: 'unknown', created: null, line: null, snapshot: null, stoppable: false } as const;
  const looker = new Looker(sampleEntry({ ...unreadable, kernels: [] }));
  const { host } = looker;
  looker.toggle();
  assert.equal(disabledIn(host).length, host.querySelectorAll('.jsky-actions jp-button').length);
  assert.ok(!host.querySelector('.jsky-card-down')!.hasAttribute('disabled'));
  assert.deepEqual(looker.followed, [], 'nor is its log looked for');
  looker.show(sampleEntry(unreadable));
  assert.ok(!disabledIn(host).includes('Open the log'), 'a kernel knows its nodes');
});

function disabledIn(host: HTMLElement): (string | null)[] {
  const found = [...host.querySelectorAll('jp-button[disabled]')];
  return found.map((button) => button.getAttribute('aria-label'));
}

test('machines are stopped and started where that is possible, and no run is stopped by that', () => {
  const looker = new Looker(sampleEntry({ state: 'ready' }));
  const button = (label: string) => looker.host.querySelector<HTMLElement>(`[aria-label="${label}"]`)!;
  const stop = button('Stop its machines and keep their disks…');
  const start = button('Start its machines again…');
  assert.deepEqual([stop.hidden, start.hidden], [false, true]);
  looker.press('Stop its machines and keep their disks…');
  looker.show(sampleEntry({ state: 'stopped', price: 0.02, snapshot: null, kernels: [] }));
  assert.deepEqual([stop.hasAttribute('disabled'), start.hidden], [true, false]);
  assert.match(looker.host.textContent!, /its disks \$0\.02 an hour · \$2\.05 so far/);
  looker.press('Start its machines again…');
  assert.deepEqual(looker.did, [['stop', 'c1', 0], ['start', 'c1', 0]]);
  // Hosts and processes cost nothing: they are not stopped.
  looker.show(sampleEntry({ state: 'ready', provider: 'ssh', stoppable: false }));
  assert.deepEqual([stop.hidden, start.hidden], [true, true]);
});

test('Stop is in one place: beside the name, or in the view of an opened cluster', () => {
  const looker = new Looker(sampleEntry());
  const stop = looker.host.querySelector<HTMLElement>('[aria-label="Stop the current run"]')!;
  assert.ok(!stop.hidden);
  looker.toggle();
  assert.ok(stop.hidden);
  looker.show(sampleEntry({ snapshot: null }));
  assert.ok(!stop.hidden);
  looker.show(sampleEntry({ state: 'ready' }));
  assert.ok(stop.hidden);
});

test('nothing that a rank, a kernel or a server says becomes markup', async () => {
  const bad = '<img src=x onerror=alert(1)>\x1b[31m\x00\u202e`<b>x</b>`';
  const kernel = { id: 'k', notebook: bad, path: bad, busy: false, jupyter_sky: bad };
  const entry = sampleEntry({ name: bad, provider: bad, gpu: bad, note: bad, kernels: [kernel] });
  const looker = new Looker(entry);
  looker.list.show([entry], bad, NOW);
  looker.toggle();
  looker.follows.get('c1:0')!(chunk(`${bad}\n`, bad), true);
  await frame();
  assert.equal(looker.host.querySelectorAll('img, b, script').length, 0);
  assert.ok(looker.host.textContent!.includes('<img src=x onerror=alert(1)>'));
  assert.doesNotMatch(looker.host.innerHTML, /[\x00\x1b\u202e]/);
});

test('no icon means two things', () => {
  const source = readFileSync(new URL('../src/lab/icons.ts', import.meta.url), 'utf8');
  const table = source.slice(source.indexOf('const ICONS'));
  const names = [...table.matchAll(/^  \w+: (\w+),?$/gm)].map(([, icon]) => icon);
  assert.ok(names.length > 10);
  assert.deepEqual(names, [...new Set(names)]);
});

test('a sentence with a lone backtick is shown as it is', () => {
  const node = document.createElement('div');
  setSentence(node, 'a ` b');
  assert.equal(node.innerHTML, 'a ` b');
  setSentence(node, null);
  assert.ok(node.hidden);
});

function bound(looker: Looker) {
  return { host: looker.host, show: (...entries: Entry[]) => looker.show(...entries) };
}
