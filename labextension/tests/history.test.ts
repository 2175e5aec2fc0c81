import assert from 'node:assert/strict';
import { after, beforeEach, mock, test } from 'node:test';
import type { Ask } from '../src/action.ts';
import { Usage } from '../src/usage.ts';
import type { History, Profile, Snapshot, Variables } from '../src/snapshot.ts';
import { release, render, type Place } from '../src/view.ts';
import { english } from '../src/words.ts';
import { document, place, sample, settled, texts, textOf, touched } from './page.ts';

const STEP = 5000;

/** A kernel that answers when the test says so. */
class Kernel implements Ask {
  readonly since: number[] = [];
  next: History = { at: 0, nodes: [] };
  variablesOf: () => Promise<Variables> = () => new Promise(() => {});
  profileOf: () => Promise<Profile> = () => new Promise(() => {});

  history = async (since: number): Promise<History> => {
    this.since.push(since);
    return this.next;
  };
  variables = () => this.variablesOf();
  profile = () => this.profileOf();
}

let host: HTMLElement;
let kernel: Kernel;

beforeEach(() => {
  host = place();
  kernel = new Kernel();
});
after(() => document.body.replaceChildren());

const show = (snapshot: Snapshot, changes: Partial<Place> = {}) =>
  render(host, snapshot, () => {}, english, { kind: 'sidebar', ask: kernel, ...changes });
const button = (label: string) =>
  [...host.querySelectorAll<HTMLElement>('.jsky-more-buttons button')].find(
    ({ textContent }) => textContent === label
  )!;
const folds = () => [...host.querySelectorAll<HTMLElement>('.jsky-fold')];
const cells = (row: string) => texts(host, `${row} > *`);

/** Samples of nodes with two ranks each, from one on. */
function history(from: number, count: number, nodes = 2, gpu = false): History {
  const times = Array.from({ length: count }, (_, at) => (from + at) * STEP);
  const all = <Value>(value: Value) => times.map(() => value);
  return {
    at: from + count,
    nodes: Array.from({ length: nodes }, (_, node) => ({
      node,
      times,
      processors: 8,
      memory_total: 64e9,
      processor: all(1.5 + node),
      memory: all(4e9),
      network: all(2e6),
      ranks: [2 * node, 2 * node + 1].map((rank) => ({
        rank,
        processor: all(0.5),
        memory: all(1e9),
        gpu: gpu ? all(rank / 4) : [],
        gpu_memory: gpu ? all(20e9) : [],
        gpu_total: gpu ? 40e9 : null
      }))
    }))
  };
}

function lost(snapshot: Snapshot, ...ranks: number[]): Snapshot {
  const all = snapshot.ranks.map((rank) =>
    ranks.includes(rank.rank) ? { ...rank, phase: 'gone' as const } : rank
  );
  return { ...snapshot, ranks: all };
}

async function opened(snapshot = sample()): Promise<void> {
  show(snapshot);
  button('History').click();
  await settled();
}

test('nothing is asked before the user wants it, or after', async (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  kernel.next = history(1, 3);
  show(sample());
  assert.equal(button('History').getAttribute('aria-expanded'), 'false');
  mock.timers.tick(60_000);
  assert.deepEqual(kernel.since, []);
  button('History').click();
  await settled();
  assert.equal(button('History').getAttribute('aria-expanded'), 'true');
  kernel.next = history(4, 1);
  mock.timers.tick(5000);
  await settled();
  assert.deepEqual(kernel.since, [0, 4], 'only what came since is asked for');
  button('History').click();
  mock.timers.tick(60_000);
  assert.equal(kernel.since.length, 2);
  assert.equal(host.querySelectorAll('.jsky-history').length, 0);
  button('History').click();
  await settled();
  release(host);
  mock.timers.tick(60_000);
  assert.equal(kernel.since.length, 3);
});

test('there is a row for each node, and those of ranks when it is unfolded', async (t) => {
  t.after(() => release(host));
  kernel.next = history(1, 3);
  await opened();
  assert.deepEqual(texts(host, '.jsky-history thead th'), ['Node', 'CPUs', 'Memory', 'Network']);
  assert.deepEqual(cells('.jsky-history-node'), [
    ...['node 02 ranks', '1.5', '4 GB', '2 MB/s'],
    ...['node 12 ranks', '2.5', '4 GB', '2 MB/s']
  ]);
  assert.equal(host.querySelectorAll('.jsky-history-rank').length, 0);
  assert.deepEqual(folds().map((fold) => fold.getAttribute('aria-expanded')), ['false', 'false']);
  folds()[1]!.click();
  assert.deepEqual(folds().map((fold) => fold.getAttribute('aria-expanded')), ['false', 'true']);
  assert.deepEqual(texts(host, '.jsky-history-rank th'), ['rank 2', 'rank 3']);
  assert.deepEqual(cells('.jsky-history-rank:last-child'), ['rank 3', '0.5', '1 GB', '']);
  const drawn = host.querySelector('.jsky-history-rank path')!.getAttribute('d')!;
  assert.equal(drawn.match(/[ML]/g)!.length, 3);
  folds()[1]!.click();
  assert.equal(host.querySelectorAll('.jsky-history-rank').length, 0);
});

test('GPUs are shown where there are some, and never as nothing', async (t) => {
  t.after(() => release(host));
  kernel.next = history(1, 3, 2, true);
  await opened();
  const headings = ['Node', 'CPUs', 'GPU', 'GPU memory', 'Memory', 'Network'];
  assert.deepEqual(texts(host, '.jsky-history thead th'), headings);
  folds()[1]!.click();
  assert.deepEqual(cells('.jsky-history-rank:last-child').slice(2, 4), ['75 %', '20 GB']);
  assert.deepEqual(cells('.jsky-history-node').slice(8, 10), ['63 %', '40 GB']);
  assert.match(
    host.querySelector('.jsky-history-rank:last-child td:nth-child(4)')!.getAttribute('title')!,
    /GPU memory of rank 3 · 20 GB of 40 GB · 20 GB to 20 GB in the last ten minutes/
  );
});

test('ten minutes are kept, and a gap is no line', async (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  const path = () => host.querySelector('.jsky-history-node path')!.getAttribute('d')!;
  kernel.next = history(1, 120);
  await opened();
  kernel.next = history(100, 40); // some of them again, as after a restart of the kernel
  mock.timers.tick(5000);
  await settled();
  assert.equal(path().match(/[ML]/g)!.length, 120);
  kernel.next = history(150, 5);
  mock.timers.tick(5000);
  await settled();
  assert.equal(path().match(/M/g)!.length, 2);
});

test('a rank that is lost says so in its row, and its node too', async (t) => {
  t.after(() => release(host));
  kernel.next = history(1, 3);
  await opened();
  folds().forEach((fold) => fold.click());
  show(lost(sample(), 1, 2, 3));
  assert.deepEqual(texts(host, '.jsky-history-node .jsky-history-state'), ['1 rank lost', 'lost']);
  assert.deepEqual(texts(host, '.jsky-history-rank .jsky-history-state'), ['', 'lost', 'lost', 'lost']);
  assert.deepEqual(cells('tbody:last-child > :last-child'), ['rank 3lost', '', '', '']);
});

test('nodes come and go, in order', async (t) => {
  t.after(() => release(host));
  kernel.next = history(1, 3, 4);
  await opened(sample(8));
  const names = () => texts(host, '.jsky-fold > span:nth-child(2)');
  assert.deepEqual(names(), ['node 0', 'node 1', 'node 2', 'node 3']);
  const without = { ...sample(8), ranks: sample(8).ranks.filter(({ node }) => node !== 1) };
  show(without);
  assert.deepEqual(names(), ['node 0', 'node 2', 'node 3']);
  show(sample(8));
  assert.deepEqual(names(), ['node 0', 'node 1', 'node 2', 'node 3']);
});

test('a view that is made anew shows what the one before had', async (t) => {
  t.after(() => release(host));
  const usage = new Usage();
  kernel.next = history(1, 3);
  show(sample(), { usage });
  button('History').click();
  await settled();
  folds()[1]!.click();
  release(host);
  kernel.next = history(4, 1);
  show(sample(), { usage });
  await settled();
  assert.deepEqual(kernel.since, [0, 4]);
  assert.deepEqual(texts(host, '.jsky-history-rank th'), ['rank 2', 'rank 3']);
});

test('what has not changed is not drawn again', async (t) => {
  t.after(() => release(host));
  t.mock.method(performance, 'now', () => 1000);
  kernel.next = history(1, 120, 32);
  await opened(sample(64));
  assert.equal(touched(host, () => show(structuredClone(sample(64)))).size, 0);
});

test('a cell has it while its run goes on, and only when it is open', async (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  const more = () => host.querySelector<HTMLElement>('.jsky-more')!;
  const inCell = (snapshot: Snapshot) => show(snapshot, { kind: 'cell', open: true });
  kernel.next = history(1, 3);
  inCell(sample());
  button('History').click();
  await settled();
  host.querySelector<HTMLElement>('.jsky-toggle')!.click();
  mock.timers.tick(60_000);
  assert.equal(kernel.since.length, 1, 'nothing is asked while it is folded');
  host.querySelector<HTMLElement>('.jsky-toggle')!.click();
  await settled();
  assert.equal(kernel.since.length, 2);
  inCell({ ...sample(), run: { ...sample().run!, state: 'ok' } });
  assert.ok(more().hidden);
  mock.timers.tick(60_000);
  assert.equal(kernel.since.length, 2);
});

test('where nobody can answer there is nothing to ask', (t) => {
  t.after(() => release(host));
  show(sample(), { ask: null });
  assert.ok(host.querySelector<HTMLElement>('.jsky-more')!.hidden);
});

test('a kernel that does not answer is no reason to stop asking', async (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  kernel.history = () => Promise.reject(new Error('the kernel does not answer'));
  await opened();
  assert.equal(textOf(host, '.jsky-more-part'), 'the kernel does not answer');
  kernel.history = async () => history(1, 3);
  mock.timers.tick(5000);
  await settled();
  assert.equal(host.querySelectorAll('.jsky-history-node').length, 2);
  assert.equal(textOf(host, '.jsky-more-part > [role=status]'), '');
});

test('names are a table, in which ranks that differ are marked', async (t) => {
  t.after(() => release(host));
  const bad = '<img src=x onerror=alert(1)>\x1b[31m\u202e';
  kernel.variablesOf = async () => ({
    head: ['name', 'type', 'ranks'],
    rows: [
      { cells: ['model', 'Linear', '0-3'], differs: false },
      { cells: [bad, 'int', '0-1'], differs: true }
    ],
    notes: ['a run is going on: values were not compared']
  });
  show(sample());
  button('Variables').click();
  assert.equal(textOf(host, '.jsky-more-part:not([hidden])'), 'Asking the ranks…');
  await settled();
  assert.deepEqual(texts(host, '.jsky-variables tbody th'), ['model', '<img src=x onerror=alert(1)>']);
  assert.deepEqual(texts(host, '.jsky-variables [data-differs] td'), ['int', 'differs 0-1']);
  assert.equal(host.querySelectorAll('img').length, 0);
  assert.match(textOf(host, '.jsky-more-part:not([hidden])'), /values were not compared/);
  kernel.variablesOf = async () => ({ head: [], rows: [], notes: [] });
  host.querySelector<HTMLElement>('.jsky-more-part:not([hidden]) button')!.click();
  await settled();
  assert.match(textOf(host, '.jsky-more-part:not([hidden])'), /no variables yet/);
});

test('a profile is made on request, and only what a picture needs is taken over', async (t) => {
  t.after(() => release(host));
  let give: (profile: Profile) => void = () => {};
  kernel.profileOf = () => new Promise((done) => (give = done));
  show({ ...sample(), run: null });
  assert.ok(button('Profile').hidden, 'there is nothing to look at');
  show(sample());
  button('Profile').click();
  assert.match(textOf(host, '.jsky-more-part:not([hidden])'), /for ten seconds…/);
  const svg =
    '<svg role="img" aria-label="time" width="100%" height="36" onload="document.broken = 4">' +
    '<rect x="2%" fill="#f4b26a" style="fill: url(//bad)"/><a href="javascript:0"><text>no</text></a>' +
    '<text fill="url(//bad)" y="12">step\x1b</text><foreignObject><b>no</b></foreignObject></svg>';
  const html = `<div><b>60 % compute</b><script>document.broken = 3</script><img src=x>${svg}</div>`;
  give({ html });
  await settled();
  const picture = host.querySelector<HTMLElement>('.jsky-profile')!;
  assert.equal(
    picture.innerHTML,
    '<div><b>60 % compute</b><svg role="img" aria-label="time" width="100%" height="36">' +
      '<rect x="2%" fill="#f4b26a"></rect><text y="12">step</text></svg></div>'
  );
  assert.equal((document as any).broken, undefined);
  button('Profile').click();
  assert.equal(host.querySelectorAll('.jsky-profile').length, 0);
});
