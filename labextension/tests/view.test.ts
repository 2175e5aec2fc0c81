import assert from 'node:assert/strict';
import { after, beforeEach, mock, test } from 'node:test';
import type { Action, Snapshot } from '../src/snapshot.ts';
import { release, render, type Translation } from '../src/view.ts';
import { document, KeyboardEvent, MouseEvent, place, sample, texts, textOf, touched } from './page.ts';

let host: HTMLElement;
let actions: Action[];

beforeEach(() => {
  host = place();
  actions = [];
});
after(() => document.body.replaceChildren());

const show = (snapshot: Snapshot) => render(host, snapshot, (action) => actions.push(action));
const row = (rank: number) => host.querySelector<HTMLElement>(`[data-rank="${rank}"]`)!;
const stop = () => host.querySelector<HTMLButtonElement>('.jsky-stop')!;

function withRank(snapshot: Snapshot, rank: number, changes: object): Snapshot {
  const ranks = snapshot.ranks.map((each) => (each.rank === rank ? { ...each, ...changes } : each));
  return { ...snapshot, ranks };
}

function withOutput(snapshot: Snapshot, text: string, rank = 0): Snapshot {
  return { ...snapshot, output: { rank, text } };
}

test('the cluster and its run are shown', (t) => {
  t.after(() => release(host));
  const snapshot = sample();
  Object.assign(snapshot.cluster, { price: 16.4, cost: 0.5, note: 'joining' });
  show(snapshot);
  assert.equal(textOf(host, '.jsky-cluster'), 'demoready2 nodes × A100 · localjoining');
  assert.equal(
    textOf(host, '.jsky-run'),
    'Running1:01train(3)ranks 0-3 · 1.23 MB sent · $16.40 an hour · $0.50 so far'
  );
});

test('a rank says how it is, to the eye and to the ear', (t) => {
  t.after(() => release(host));
  show(sample());
  assert.deepEqual(
    [...row(3).children].map((cell) => cell.textContent),
    ['3', 'running', 'A100 #1', '50 %', '12.1 / 40 GB', 'line of 3']
  );
  assert.equal(
    row(3).getAttribute('aria-label'),
    'rank 3, A100 #1, running, 50 % busy, memory 12.1 / 40 GB'
  );
  assert.deepEqual(
    texts(host, '[role=listbox] > [role=group] .jsky-node-title'),
    ['node 0', 'node 1']
  );
});

test('what is not known is left out', () => {
  const snapshot = withRank(sample(2), 0, { utilisation: null, memory: null, gpu: null });
  snapshot.run = null;
  snapshot.sent_bytes = 0;
  snapshot.nodes = snapshot.nodes.map((node) => ({ ...node, gpu: null }));
  show(snapshot);
  assert.equal(row(0).getAttribute('aria-label'), 'rank 0, CPU, running');
  assert.equal(textOf(host, '.jsky-run'), 'Nothing has run yet');
  assert.ok(stop().hidden);
});

test('an unchanged snapshot touches nothing', (t) => {
  t.after(() => release(host));
  const snapshot = sample(64);
  show(snapshot);
  assert.equal(touched(host, () => show(snapshot)).size, 0);
  assert.equal(touched(host, () => show(structuredClone(snapshot))).size, 0);
});

test('what changed of a rank touches that rank only', (t) => {
  t.after(() => release(host));
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
  assert.equal(host.querySelectorAll('[role=group]').length, 32);
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
  assert.deepEqual(actions, [{ kind: 'select', rank: 2 }]);
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
  assert.deepEqual(actions, [{ kind: 'select', rank: 1 }]);
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

test('Stop says what it stops, and what to do when nothing happens', (t) => {
  t.after(() => release(host));
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  show(sample());
  stop().click();
  assert.deepEqual(actions, [{ kind: 'stop', run: 'r1' }]);
  assert.equal(stop().textContent, 'Stopping…');
  assert.ok(stop().disabled);
  mock.timers.tick(1000);
  assert.match(textOf(host, '.jsky-hint'), /notebook's own Stop \(■\)/);
  assert.ok(!stop().disabled);
  show({ ...sample(), run: { ...sample().run!, state: 'interrupted' } });
  assert.equal(textOf(host, '.jsky-hint'), '');
  assert.ok(stop().hidden);
  assert.equal(textOf(host, '.jsky-run-state'), 'Stopped');
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
  assert.equal(announced(), 'Cluster demo is ready. Running');
  show(withRank(sample(), 1, { utilisation: 1, line: 'more' }));
  assert.equal(announced(), 'Cluster demo is ready. Running');
  show(withRank(sample(), 1, { phase: 'gone', trouble: 'killed' }));
  assert.equal(announced(), 'Cluster demo is ready. Running. 1 rank is gone');
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
  for (const place of ['.jsky-name', '.jsky-note', '.jsky-title', '.jsky-line', '.jsky-text-line']) {
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
  const words = texts(host, '.jsky-state, .jsky-output-title, .jsky-stop, .jsky-node-title');
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
