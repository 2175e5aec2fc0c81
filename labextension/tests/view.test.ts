import assert from 'node:assert/strict';
import { after, beforeEach, mock, test } from 'node:test';
import type { Action } from '../src/action.ts';
import type { Curve, Snapshot } from '../src/snapshot.ts';
import { release, render, type Place, type Translation } from '../src/view.ts';
import { english } from '../src/words.ts';
import { document, KeyboardEvent, MouseEvent, place, sample, texts, textOf, touched } from './page.ts';

let host: HTMLElement;
let actions: Action[];

beforeEach(() => {
  host = place();
  actions = [];
});
after(() => document.body.replaceChildren());

const show = (snapshot: Snapshot) => render(host, snapshot, (action) => actions.push(action));
const showInCell = (snapshot: Snapshot, changes: Partial<Place> = {}) =>
  render(host, snapshot, (action) => actions.push(action), english, { kind: 'cell', ...changes });
const row = (rank: number) => host.querySelector<HTMLElement>(`[data-rank="${rank}"]`)!;
const stop = () => host.querySelector<HTMLButtonElement>('.jsky-stop')!;

function withRank(snapshot: Snapshot, rank: number, changes: object): Snapshot {
  const ranks = snapshot.ranks.map((each) => (each.rank === rank ? { ...each, ...changes } : each));
  return { ...snapshot, ranks };
}

function withOutput(snapshot: Snapshot, text: string, rank = 0): Snapshot {
  return { ...snapshot, output: { rank, text } };
}

const PROGRESS = { label: 'epochs', part: 0.45, count: '45/100', left: 75 };

test('the run is shown in a line', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  Object.assign(snapshot.cluster, { price: 16.4, cost: 0.5 });
  show(snapshot);
  assert.equal(textOf(host, '.jsky-lead'), 'Running1:01');
  assert.equal(textOf(host, '.jsky-title'), 'train(3)');
  assert.equal(textOf(host, '.jsky-run-facts'), '4 ranks · 1.23 MB sent · $16.40 an hour');
});

test('a cell shows the strip, and the ranks when it is opened', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  Object.assign(snapshot.run!, { cost: 0.12, progress: PROGRESS });
  showInCell(snapshot, { open: false, hasSidebar: true });
  const toggle = host.querySelector<HTMLElement>('.jsky-toggle')!;
  assert.equal(toggle.getAttribute('aria-expanded'), 'false');
  assert.equal(textOf(host, '.jsky-head .jsky-progress'), 'epochs · 45/100 · 1:15 left');
  assert.equal(textOf(host, '.jsky-run-facts'), '4 ranks · 1.23 MB sent · $0.12');
  snapshot.cluster.unit = 'node hours';
  showInCell(snapshot, { open: false, hasSidebar: true });
  assert.equal(textOf(host, '.jsky-run-facts'), '4 ranks · 1.23 MB sent · 0.12 node hours');
  assert.ok(host.querySelector<HTMLElement>('.jsky-title')!.hidden, 'the cell is the title');
  assert.equal(host.querySelectorAll('[role=option]').length, 0);
  toggle.click();
  assert.equal(toggle.getAttribute('aria-expanded'), 'true');
  assert.equal(host.querySelectorAll('[role=option]').length, 4);
  host.querySelector<HTMLElement>('.jsky-cluster')!.click();
  assert.deepEqual(actions, [{ kind: 'open', open: true }, { kind: 'cluster', cluster: 'c1' }]);
});

test('a cluster has the state that the sidebar says, as long as its run knows that', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  const cluster = () => {
    const dot = host.querySelector<HTMLElement>('.jsky-cluster > .jsky-dot')!;
    const title = host.querySelector('.jsky-cluster')!.getAttribute('title');
    return [dot.hidden ? null : dot.dataset.phase, title];
  };
  showInCell(snapshot);
  assert.deepEqual(cluster(), ['running', 'demo · 2 nodes × A100 · local · running']);
  showInCell(snapshot, { isLost: true });
  assert.deepEqual(cluster(), [null, 'demo · 2 nodes × A100 · local']);
  snapshot.run!.state = 'ok';
  showInCell(snapshot);
  assert.deepEqual(cluster(), [null, 'demo · 2 nodes × A100 · local'], 'others may run there now');
  snapshot.cluster.phase = 'lost';
  showInCell(snapshot);
  assert.deepEqual(cluster(), ['lost', 'demo · 2 nodes × A100 · local · lost']);
  Object.assign(snapshot, { run: null, cluster: { ...snapshot.cluster, phase: 'ready' } });
  showInCell(snapshot);
  assert.deepEqual(cluster(), ['ready', 'demo · 2 nodes × A100 · local · idle']);
});

test('in a cell a rank shows its output until it is clicked again, and the head none', (t) => {
  t.after(() => release(host));
  showInCell(sample());
  const output = host.querySelector<HTMLElement>('.jsky-output')!;
  assert.ok(output.hidden, 'nothing is shown twice');
  row(2).click();
  assert.ok(!output.hidden);
  showInCell(withOutput(sample(), 'two\n', 2));
  assert.deepEqual(texts(host, '.jsky-text-line'), ['two']);
  row(2).click();
  assert.ok(output.hidden);
  row(0).click();
  assert.match(textOf(host, '.jsky-output-head'), /The cell shows what this rank prints/);
  const shown = withOutput(sample(), 'one\n', 0);
  showInCell(shown, { isIncomplete: true });
  assert.deepEqual(texts(host, '.jsky-text-line'), ['one'], 'the cell lacks some of it');
  shown.run!.state = 'ok';
  showInCell(shown, { isIncomplete: true });
  assert.match(textOf(host, '.jsky-output-head'), /"Show missing output" has what this rank has printed/);
  row(0).dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
  assert.ok(output.hidden);
  const chosen = actions.map((action) => action.kind === 'select' && action.rank);
  assert.deepEqual(chosen, [2, null, 0, null]);
});

test('a failed rank is one click away, with links to the lines of code', (t) => {
  t.after(() => release(host));
  const error = { outcome: 'error', error: 'ValueError: no data', phase: 'idle', seconds: 3.5 };
  const released = { outcome: 'released', phase: 'idle', seconds: 3.6 };
  let snapshot = withRank(withRank(sample(), 2, error), 0, released);
  snapshot = { ...snapshot, run: { ...snapshot.run!, state: 'error', seconds: 3.6 } };
  const text = '\x1b[36mCell \x1b[32mIn[4], line 3\x1b[39m\n      1 if rank == 2:\nFile ~/model.py:12, in f\n';
  snapshot.others = [{ rank: 2, text }];
  showInCell(snapshot, { open: false });
  assert.equal(textOf(host, '.jsky-failed'), 'rank 2 failed');
  host.querySelector<HTMLElement>('.jsky-failed')!.click();
  assert.equal(row(2).dataset.outcome, 'error');
  assert.equal(textOf(row(2), '.jsky-line'), 'ValueError: no data');
  assert.equal(textOf(row(0), '.jsky-rank-state'), 'stopped');
  assert.equal(textOf(row(0), '.jsky-mark'), 'another rank failed');
  assert.match(row(0).title, /stopped, another rank failed/);
  const links = host.querySelectorAll<HTMLElement>('.jsky-code-link');
  links.forEach((link) => link.click());
  assert.deepEqual(
    actions.filter(({ kind }) => kind === 'go'),
    [
      { kind: 'go', place: { cell: 4, file: null, line: 3 } },
      { kind: 'go', place: { cell: null, file: '~/model.py', line: 12 } }
    ]
  );
});

test('ranks of a run that waits for its turn wait, whatever they do for another run', (t) => {
  t.after(() => release(host));
  const snapshot = withRank(sample(), 1, { phase: 'gone' });
  showInCell({ ...snapshot, run: { ...snapshot.run!, state: 'waiting' } });
  assert.deepEqual(texts(host, '.jsky-rank .jsky-rank-state'), ['waiting', 'gone', 'waiting', 'waiting']);
  assert.match(row(2).title, /waiting/);
  assert.equal(texts(host, '.jsky-rank .jsky-line').join('').trim(), '', 'what they print is not of it');
  // The same ranks, once it is its turn.
  showInCell(snapshot);
  assert.deepEqual(texts(host, '.jsky-rank .jsky-rank-state'), ['running', 'gone', 'running', 'running']);
  const waiting = { ...snapshot, run: { ...snapshot.run!, state: 'waiting' as const } };
  const card = place();
  render(card, waiting, () => {});
  assert.equal(texts(card, '.jsky-rank .jsky-rank-state')[0], 'running', 'a card shows the cluster');
  assert.equal(texts(card, '.jsky-rank .jsky-line')[0], 'line of 0');
  release(card);
});

test('where no rank is there yet, there is no empty list', (t) => {
  t.after(() => release(host));
  const list = () => host.querySelector<HTMLElement>('[role=listbox]')!;
  show({ ...sample(), run: null, nodes: [], ranks: [] });
  assert.ok(list().hidden);
  show(sample());
  assert.ok(!list().hidden);
});

test('where a rank has printed nothing, there is no empty line', (t) => {
  t.after(() => release(host));
  show(withOutput(sample(), ''));
  assert.match(textOf(host, '.jsky-output-head'), /nothing printed yet/);
  const { run } = sample();
  show({ ...withOutput(sample(), ''), run: { ...run!, state: 'ok' } });
  assert.match(textOf(host, '.jsky-output-head'), /nothing was printed/);
  assert.deepEqual(texts(host, '.jsky-text-line'), []);
  show(withOutput(sample(), '\n\n'));
  assert.deepEqual(texts(host, '.jsky-text-line'), ['', ''], 'but those that it has printed');
});

test('the bar of a rank is that of its run, also where its present state is shown', (t) => {
  t.after(() => release(host));
  const bar = () => row(1).querySelector<HTMLElement>('.jsky-progress')!;
  show(withRank(sample(), 1, { progress: PROGRESS }));
  assert.equal(bar().dataset.outcome, undefined);
  show(withRank(sample(), 1, { progress: PROGRESS, phase: 'idle', outcome: 'ok' }));
  assert.equal(row(1).dataset.outcome, 'idle');
  assert.equal(bar().dataset.outcome, 'ok');
});

test('which GPU a rank has is seen and said, however long their name is', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  snapshot.nodes[0]!.gpu = 'NVIDIA H100 80GB HBM3';
  showInCell(snapshot);
  assert.equal(textOf(row(1), '.jsky-device'), 'H100 80GB HBM3 #1');
  assert.match(row(1).title, /NVIDIA H100 80GB HBM3 #1/);
  assert.equal(textOf(row(1), '.jsky-device > :last-child'), ' #1', 'it is not cut off');
});

test('what a page does not know it does not claim', (t) => {
  t.after(() => release(host));
  const dear = sample();
  dear.run!.cost = 2.05;
  showInCell(dear, { note: 'The kernel was restarted: `%sky attach`.', isLost: true });
  assert.equal(textOf(host, '.jsky-run-state'), 'Ended');
  assert.equal(textOf(host, '.jsky-spoken'), 'Ended', 'to the ear as to the eye');
  assert.equal(textOf(host, '.jsky-elapsed'), '', 'it may have gone on for hours');
  assert.equal(textOf(host, '.jsky-run-facts'), '4 ranks · 1.23 MB sent', 'nor what it cost');
  assert.equal(textOf(host, '.jsky-note'), 'The kernel was restarted: %sky attach.');
  assert.deepEqual(texts(host, '.jsky-note code'), ['%sky attach']);
  assert.ok(stop().hidden);
  const ended = withRank(sample(), 2, { outcome: 'ok', seconds: 3.5 });
  ended.run!.progress = { label: 'epochs', part: 0.4, count: '4/10', left: 9 };
  showInCell(ended, { isLost: true });
  assert.deepEqual(texts(host, '.jsky-rank-state'), ['unknown', 'unknown', 'finished', 'unknown']);
  assert.doesNotMatch(row(0).title, /busy|memory/, 'its usage is of the past');
  assert.equal(textOf(host, '.jsky-head .jsky-amount'), ' · 4/10');
  showInCell(sample(), { isIncomplete: true });
  assert.equal(textOf(row(0), '.jsky-rank-state'), 'running');
  const restore = host.querySelector<HTMLElement>('.jsky-small-button')!;
  assert.ok(!restore.hidden);
  restore.click();
  assert.deepEqual(actions, [{ kind: 'restore', run: 'r1' }]);
});

test('a page that a node serves is a link beside the run, while that goes on', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  snapshot.cluster.pages = [{ label: 'Port 6006 of rank 2', path: 'jupyter-sky/forward/c1/p/' }];
  const links = () => [...host.querySelectorAll<HTMLAnchorElement>('.jsky-page')];
  showInCell(snapshot);
  assert.equal(links().length, 0, 'a page without a server of ours knows no way there');
  const address = (path: string) => `/user/ada/${path}`;
  showInCell(snapshot, { address });
  assert.deepEqual(
    links().map((link) => [link.textContent, link.getAttribute('href')]),
    [['Port 6006 of rank 2', '/user/ada/jupyter-sky/forward/c1/p/']]
  );
  snapshot.run!.state = 'ok';
  showInCell(snapshot, { address });
  assert.equal(links().length, 0);
});

test('a rank that began anew is marked, and a bar is a bar', (t) => {
  t.after(() => release(host));
  const began = withRank(sample(), 2, { began_empty: true });
  show(withRank(withRank(began, 1, { restarted: true }), 3, { progress: PROGRESS }));
  assert.equal(textOf(row(1), '.jsky-mark'), 'restarted, empty');
  assert.equal(textOf(row(2), '.jsky-mark'), 'began empty', 'it has variables now');
  assert.ok(row(0).querySelector<HTMLElement>('.jsky-mark')!.hidden);
  assert.equal(textOf(row(3), '.jsky-progress'), '45/100 · 1:15 left');
  assert.ok(row(3).querySelector<HTMLElement>('.jsky-line')!.hidden);
});

test('a rank says how it is, to the eye and to the ear', (t) => {
  t.after(() => release(host));
  show(sample());
  assert.deepEqual(
    [...row(3).children].map((cell) => cell.textContent),
    ['3', 'running', '', 'A100 #1', '50 %', '12.1 / 40 GB', '', '', 'line of 3']
  );
  assert.equal(
    row(3).getAttribute('aria-label'),
    'rank 3, A100 #1, running, 50 % busy, memory 12.1 / 40 GB, line of 3'
  );
  show(withRank(sample(), 3, { progress: PROGRESS }));
  assert.match(row(3).getAttribute('aria-label')!, /GB, 45\/100, 1:15 left$/);
  // What a device does now says nothing about a run of the past.
  const over = withRank(sample(), 3, { outcome: 'ok', phase: 'idle', seconds: 9.5 });
  release(host);
  showInCell({ ...over, run: { ...over.run!, state: 'ok' } });
  assert.equal(row(3).getAttribute('aria-label'), 'rank 3, A100 #1, finished, 9.5 s, line of 3');
  assert.deepEqual(
    texts(host, '[role=listbox] > [role=group] .jsky-node-title'),
    ['node 0', 'node 1']
  );
});

test('the columns have headings, and an address that all nodes share is left out', (t) => {
  t.after(() => release(host));
  const headings = ['Rank', 'State', 'Time', 'Device', 'Utilisation', 'Memory', 'Output'];
  show(sample());
  assert.deepEqual(texts(host, '.jsky-heading-row > span'), headings);
  const at = (addr: (node: number) => string) => {
    const there = sample();
    show({ ...there, nodes: there.nodes.map((each) => ({ ...each, addr: addr(each.node) })) });
    return texts(host, '.jsky-node-head .jsky-quiet');
  };
  assert.deepEqual(at((node) => `gpu${node}`), ['gpu0', 'gpu1']);
  assert.deepEqual(at(() => '127.0.0.1'), ['', '']);
});

test('what is not known is left out', () => {
  const snapshot = withRank(sample(2), 0, { utilisation: null, memory: null, gpu: null });
  snapshot.run = null;
  snapshot.sent_bytes = 0;
  snapshot.nodes = snapshot.nodes.map((node) => ({ ...node, gpu: null }));
  show(snapshot);
  assert.equal(row(0).getAttribute('aria-label'), 'rank 0, CPU, running, line of 0');
  assert.equal(textOf(host, '.jsky-lead'), 'Nothing has run yet');
  assert.ok(stop().hidden);
});

test('an unchanged snapshot touches nothing', (t) => {
  t.after(() => release(host));
  t.mock.method(performance, 'now', () => 1000); // a busy machine takes long, and clocks go on
  const snapshot = sample(64);
  show(snapshot);
  assert.equal(touched(host, () => show(snapshot)).size, 0);
  assert.equal(touched(host, () => show(structuredClone(snapshot))).size, 0);
});

test('what changed of a rank touches that rank only', (t) => {
  t.after(() => release(host));
  t.mock.method(performance, 'now', () => 1000);
  const snapshot = sample(64);
  show(snapshot);
  const changed = touched(host, () => show(withRank(snapshot, 40, { line: 'next', utilisation: 1 })));
  assert.equal(textOf(row(40), '.jsky-line'), 'next');
  assert.ok(changed.size > 0);
  assert.ok([...changed].every((node) => row(40).contains(node)));
});

test('ranks come and go', () => {
  const snapshot = { ...sample(4), run: null };
  show(snapshot);
  show({ ...snapshot, ranks: snapshot.ranks.slice(0, 2), nodes: snapshot.nodes.slice(0, 1) });
  assert.equal(host.querySelectorAll('[role=option]').length, 2);
  show({ ...sample(64), run: null });
  assert.equal(host.querySelectorAll('[role=option]').length, 64);
  assert.equal(host.querySelectorAll('[role=listbox] [role=group]').length, 32);
});

test('lines are added at the end, and as many fall off at the top', (t) => {
  t.after(() => release(host));
  const lines = Array.from({ length: 250 }, (_, at) => `line ${at}`);
  const text = (from: number, to: number) => lines.slice(from, to).join('\n') + '\n';
  show(withOutput(sample(), text(0, 200)));
  const kept = host.querySelectorAll('.jsky-text-line')[50]!;
  const changed = touched(host, () => show(withOutput(sample(), text(50, 250))));
  assert.equal(host.querySelector('.jsky-text-line'), kept);
  assert.deepEqual(texts(host, '.jsky-text-line'), lines.slice(50));
  assert.ok([...changed].every((node) => node.matches('.jsky-text')));
});

test('a line that is overwritten is one line', (t) => {
  t.after(() => release(host));
  show(withOutput(sample(), 'start\n 10%|█   |'));
  const changed = touched(host, () => show(withOutput(sample(), 'start\n 10%|█   |\r 20%|██  |')));
  assert.deepEqual(texts(host, '.jsky-text-line'), ['start', ' 20%|██  |']);
  assert.deepEqual([...changed], [host.querySelectorAll('.jsky-text-line')[1]]);
});

test('a click selects a rank, and its own output takes the place', (t) => {
  t.after(() => release(host));
  show(sample());
  row(2).dispatchEvent(new MouseEvent('click', { bubbles: true }));
  assert.deepEqual(actions, [{ kind: 'select', run: 'r1', rank: 2 }]);
  assert.equal(row(2).getAttribute('aria-selected'), 'true');
  assert.equal(row(0).getAttribute('aria-selected'), 'false');
  assert.deepEqual(texts(host, '.jsky-text-line'), ['line of 2'], 'its last line stands in');
  show(withOutput(sample(), 'three\nfour\n'));
  assert.equal(row(2).getAttribute('aria-selected'), 'true', 'the choice stands');
  show(withOutput(sample(), 'three\nfour\n', 2));
  assert.deepEqual(texts(host, '.jsky-text-line'), ['three', 'four']);
  assert.equal(textOf(host, '.jsky-output-title'), 'Output of rank 2');
});

test('the keyboard reaches every rank', (t) => {
  t.after(() => release(host));
  show(sample());
  const press = (key: string) =>
    document.activeElement!.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  assert.deepEqual(
    [...host.querySelectorAll('[role=option]')].map((node) => (node as HTMLElement).tabIndex),
    [0, -1, -1, -1]
  );
  row(0).focus();
  press('ArrowDown');
  press('ArrowDown');
  assert.equal(document.activeElement, row(2));
  press('End');
  assert.equal(document.activeElement, row(3));
  press('ArrowDown');
  assert.equal(document.activeElement, row(3));
  press('Home');
  press('ArrowDown');
  assert.deepEqual(actions, [], 'moving does not select');
  press('Enter');
  press('a');
  assert.deepEqual(actions, [{ kind: 'select', run: 'r1', rank: 1 }]);
});

test('output follows its end until the user scrolls up', (t) => {
  t.after(() => release(host));
  show(sample());
  const text = host.querySelector<HTMLElement>('.jsky-text')!;
  const latest = host.querySelector<HTMLButtonElement>('.jsky-latest')!;
  // jsdom lays nothing out.
  Object.defineProperties(text, { clientHeight: { value: 100 }, scrollHeight: { value: 500 } });
  show(withOutput(sample(), 'one\ntwo\nthree\n'));
  assert.equal(text.scrollTop, 500);
  assert.ok(latest.hidden);
  text.scrollTop = 50;
  text.dispatchEvent(new MouseEvent('scroll'));
  show(withOutput(sample(), 'one\ntwo\nthree\nfour\n'));
  assert.equal(text.scrollTop, 50);
  assert.ok(!latest.hidden);
  latest.click();
  assert.equal(text.scrollTop, 500);
  assert.ok(latest.hidden);
});

test('seconds are counted while it runs, and exact at the end', (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setInterval'] });
  t.after(() => mock.timers.reset());
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const snapshot = sample();
  show(snapshot);
  assert.equal(textOf(host, '.jsky-elapsed'), '1:01');
  now = 4000;
  mock.timers.tick(1000);
  assert.equal(textOf(host, '.jsky-elapsed'), '1:05');
  show(withOutput(snapshot, 'more'));
  assert.equal(textOf(host, '.jsky-elapsed'), '1:05');
  show({ ...snapshot, run: { ...snapshot.run!, state: 'ok', seconds: 4.25 } });
  now = 9000;
  mock.timers.tick(5000);
  assert.equal(textOf(host, '.jsky-elapsed'), '4.3 s');
});

test('a run says where its ranks are, by itself or when it is asked', (t) => {
  t.after(() => release(host));
  const where = () => host.querySelector<HTMLElement>('.jsky-where')!;
  const ask = () => host.querySelector<HTMLElement>('.jsky-ask-where')!;
  showInCell(sample(), { open: false });
  assert.ok(where().hidden);
  ask().click();
  assert.deepEqual(actions, [{ kind: 'where', run: 'r1' }]);
  const said = 'rank 0 is at `f(<b>)`.\n   rank 0 `\n      cell [7], line 2\u202e<b>`\x1b[31m';
  showInCell({ ...sample(), run: { ...sample().run!, where: said } }, { open: false });
  assert.ok(!where().hidden);
  assert.equal(
    where().textContent,
    'rank 0 is at f(<b>).\n   rank 0 `\n      cell [7], line 2<b>`'
  );
  assert.deepEqual(texts(where(), 'code'), ['f(<b>)'], 'code is in one line');
  assert.ok(!where().hasAttribute('data-warns'), 'an answer is no warning');
  showInCell({ ...sample(), run: { ...sample().run!, where: said, warns: true } }, { open: false });
  assert.ok(where().hasAttribute('data-warns'));
  // Where they were when they were stopped is still worth knowing; of a run that has finished it is false.
  showInCell({ ...sample(), run: { ...sample().run!, where: said, state: 'interrupted' } }, { open: false });
  assert.ok(!where().hidden && ask().hidden);
  showInCell({ ...sample(), run: { ...sample().run!, where: said, state: 'ok' } }, { open: false });
  assert.ok(where().hidden && ask().hidden);
});

test('Stop says what it stops, and what to do when nothing happens', (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  showInCell(sample());
  stop().click();
  assert.deepEqual(actions, [{ kind: 'stop', run: 'r1' }]);
  assert.equal(stop().textContent, 'Stopping…');
  assert.ok(stop().disabled);
  mock.timers.tick(4000);
  assert.match(textOf(host, '.jsky-hint'), /notebook's Stop button \(■\)/);
  assert.ok(!stop().disabled);
  showInCell({ ...sample(), run: { ...sample().run!, state: 'interrupted' } });
  assert.equal(textOf(host, '.jsky-hint'), '');
  assert.ok(stop().hidden);
  assert.equal(textOf(host, '.jsky-run-state'), 'Stopped');
});

test('where the button of a notebook would not stop a run, Stop does not name it', (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const inBackground = { ...sample(), run: { ...sample().run!, background: true } };
  for (const present of [() => show(sample()), () => showInCell(inBackground)]) {
    present();
    stop().click();
    mock.timers.tick(4000);
    assert.match(textOf(host, '.jsky-hint'), /^It has not stopped yet: ranks that/);
    release(host);
  }
});

test('a run that stops in time leaves no hint', (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  show(sample());
  stop().click();
  show({ ...sample(), run: { ...sample().run!, state: 'interrupted' } });
  mock.timers.tick(5000);
  assert.equal(textOf(host, '.jsky-hint'), '');
});

test('a screen reader hears of states, not of figures', (t) => {
  t.after(() => release(host));
  const announced = () => textOf(host, '.jsky-spoken');
  show(sample());
  assert.equal(announced(), 'Running');
  show(withRank(sample(), 1, { utilisation: 1, line: 'more' }));
  assert.equal(announced(), 'Running');
  show(withRank(sample(), 1, { phase: 'gone', trouble: 'killed' }));
  assert.equal(announced(), 'Running. 1 rank is gone');
  assert.equal(textOf(row(1), '.jsky-line'), 'killed');
});

test('nothing from a rank becomes markup', (t) => {
  t.after(() => release(host));
  const bad =
    '<img src=x onerror="document.broken = 1"><script>document.broken = 2</script>' +
    '\0\x07\x1b]0;title\x07\x1b[31mred\x1b[0m\u202eesrever\u2066\x9b2J</pre>&amp;';
  const good =
    '<img src=x onerror="document.broken = 1"><script>document.broken = 2</script>redesrever</pre>&amp;';
  const snapshot = withOutput(sample(2), `${bad}\n${bad}`);
  Object.assign(snapshot.cluster, { name: bad, provider: bad, note: bad, gpu: bad });
  snapshot.run!.title = bad;
  snapshot.nodes = snapshot.nodes.map((node) => ({ ...node, addr: bad, gpu: bad }));
  snapshot.ranks = snapshot.ranks.map((rank) => ({ ...rank, line: bad, trouble: bad }));
  show(snapshot);
  assert.equal(host.querySelectorAll('img, script, pre').length, 0);
  assert.equal((document as any).broken, undefined);
  for (const place of ['.jsky-title', '[data-rank] > .jsky-line', '.jsky-text-line']) {
    assert.equal(textOf(host, place), good, place);
  }
  const names = [...host.querySelectorAll('*')].flatMap((node) => node.getAttributeNames());
  assert.ok(names.every((name) => !name.startsWith('on')));
  assert.doesNotMatch(host.outerHTML, /[\0\x07\x1b\x9b\u202e\u2066]/);
});

test('words can be translated', (t) => {
  t.after(() => release(host));
  const loud: Translation = {
    __: (text, ...values) => text.toUpperCase().replace(/%(\d)/g, (_, at) => `${values[at - 1]}`),
    _n: (one, many, count, ...values) => loud.__(count === 1 ? one : many, count, ...values)
  };
  render(host, sample(), () => {}, loud);
  assert.equal(textOf(host, '.jsky-run-state'), 'RUNNING');
  const words = texts(host, '[data-rank] > .jsky-state, .jsky-output-title, .jsky-stop, .jsky-node-title');
  assert.ok(words.every((word) => word === word.toUpperCase()));
});

test('after release nothing is left', () => {
  show(sample());
  release(host);
  assert.equal(host.childNodes.length, 0);
  show(sample());
  assert.equal(host.childNodes.length, 1);
  release(host);
});

function curve(name: string, rank: number, values: (number | null)[]): Curve {
  const last = values.at(-1) ?? null;
  const gaps = values.filter((value) => value === null).length;
  return { name, rank, steps: values.map((_, at) => at), values, last, count: values.length, gaps };
}

test('curves of the head are drawn, and those of all ranks on request', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  show({ ...snapshot, curves: undefined } as unknown as Snapshot);
  assert.ok(host.querySelector<HTMLElement>('.jsky-curves')!.hidden);
  const curves = [
    curve('loss', 0, [3, null, 1, 2]),
    curve('<b>acc</b>', 0, [1e-9]),
    curve('loss', 1, [4, 4, 4, 4])
  ];
  show({ ...snapshot, curves });
  assert.deepEqual(texts(host, '.jsky-chart-name'), ['loss', '<b>acc</b>']);
  assert.equal(host.querySelector('.jsky-chart b'), null);
  assert.deepEqual(texts(host, '.jsky-chart-figure'), ['2', '1e-9']);
  assert.deepEqual(texts(host, '.jsky-chart-note'), ['1 NaN/∞', '']);
  assert.deepEqual(texts(host, '.jsky-chart-high'), ['3', '1e-9']);
  const paths = () => [...host.querySelectorAll('.jsky-chart path')];
  assert.equal(paths()[0]!.getAttribute('d'), 'M-3.0 3.0h6M160.0 77.0L240.0 40.0');
  assert.equal(paths()[1]!.getAttribute('d'), 'M117.0 40.0h6', 'in the middle, where it is seen');
  assert.equal(paths().length, 2);
  host.querySelector<HTMLElement>('.jsky-curve-tools button')!.click();
  assert.equal(paths().length, 3);
  assert.deepEqual(texts(host, '.jsky-chart-high'), ['4', '1e-9']);
  host.querySelector<HTMLElement>('.jsky-curve-tools button')!.click();
  assert.equal(paths().length, 2);
});

test('of many curves the first are shown, until all are asked for', (t) => {
  t.after(() => release(host));
  const curves = Array.from({ length: 64 }, (_, at) => curve(`name ${at}`, 0, [at, 1]));
  show({ ...sample(), curves });
  assert.equal(host.querySelectorAll('.jsky-chart').length, 12);
  const button = [...host.querySelectorAll<HTMLElement>('.jsky-curve-tools button')].at(-1)!;
  assert.equal(button.textContent, 'Show all 64');
  button.click();
  assert.equal(host.querySelectorAll('.jsky-chart').length, 64);
  show({ ...sample(), curves: curves.slice(0, 3) });
  assert.equal(host.querySelectorAll('.jsky-chart').length, 3);
});
