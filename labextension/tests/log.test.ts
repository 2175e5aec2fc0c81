import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import type { LogChunk, LogEntry } from '../src/api.ts';
import { LogPane } from '../src/sidebar/log.ts';
import { document, Event, frame, KeyboardEvent, NESTED, place, texts, textOf, tools, written } from './page.ts';

let host: HTMLElement;
let followed: string[];
let saved: number[];
let breaks: () => void;
let say: (...entries: LogEntry[]) => void;
let pane: LogPane;

function open(ranks: number[] | null): void {
  document.body.replaceChildren();
  [followed, saved] = [[], []];
  pane = new LogPane(tools, ranks, {
    follow: (ranks, onChunk: (chunk: LogChunk, isFirst: boolean) => void) => {
      followed.push(ranks);
      let isFirst = true;
      breaks = () => (isFirst = true);
      say = (...entries) => {
        onChunk({ entries, end: null }, isFirst);
        isFirst = false;
      };
      return () => {};
    },
    download: (ranks) => void saved.push(...ranks)
  });
  host = place();
  host.append(pane.element);
  pane.follow();
}

beforeEach(() => open([0, 1, 2, 3]));

const lines = () => texts(host, '.jsky-text-line');
const began = (run: string, title: string, rank = 0) => written('', { run, title, rank });

function choose(label: string, value: string): void {
  const field = host.querySelector<HTMLInputElement>(`[aria-label="${label}"]`)!;
  field.value = value;
  field.dispatchEvent(new Event('change', { bubbles: true }));
}

function search(text: string): HTMLInputElement {
  const field = host.querySelector<HTMLInputElement>('[type=search]')!;
  field.value = text;
  field.dispatchEvent(new Event('input', { bubbles: true }));
  return field;
}

test('bars below each other stay in their lines', async () => {
  const [outer = '', ...inner] = NESTED.split(/(?=\n)/);
  say(written('before\n'), written(outer));
  await frame();
  for (const text of inner) {
    say(written(text));
    await frame();
  }
  assert.deepEqual(lines(), ['before', 'epochs 1/2', 'batches 2/2']);
  say(written('\repochs 2/2\n'), written('\rafter\n'), written('more\n'));
  await frame();
  assert.deepEqual(lines(), ['before', 'epochs 2/2', 'after', 'more']);
});

test('runs are set apart, and stderr has its colour', async () => {
  assert.deepEqual(followed, ['0']);
  say(began('r1', 'load()'), began('r2', 'train()'), written('one\ntw'));
  say(written('o\n'), written('oh\n', { stream: 'stderr' }), written('\nthree\n'));
  await frame();
  assert.deepEqual(texts(host, '.jsky-log-title'), ['train()'], 'one that printed nothing is left out');
  assert.deepEqual(lines(), ['one', 'two', 'oh', '', 'three']);
  assert.deepEqual(texts(host, '[data-stream=stderr]'), ['oh']);
  assert.equal(host.querySelector('.jsky-text')!.firstElementChild!.className, 'jsky-log-run');
  say(began('r3', '<b>'), written('next\n'));
  await frame();
  assert.deepEqual(texts(host, '.jsky-log-title'), ['train()', '<b>']);
});

test('a log without a line says so', async () => {
  assert.equal(textOf(host, '.jsky-nothing'), 'waiting for output');
  say(written('one\n'));
  say(began('r2', 'train()'));
  assert.equal(textOf(host, '.jsky-nothing'), '');
});

test('a line that is overwritten is one line', async () => {
  say(written('\r 1 %'), written('\r 2 %'));
  await frame();
  assert.deepEqual(lines(), [' 2 %']);
  say(written('\r100 %\nend\n'));
  await frame();
  assert.deepEqual(lines(), ['100 %', 'end']);
});

test('several ranks are merged in order, each line with its rank, or stand side by side', async () => {
  choose('Ranks, like 0,2-3 or all', '0,2-3');
  assert.deepEqual(followed.at(-1), '0,2-3');
  const both = [
    began('r1', 'train()', 0),
    written('a', { rank: 0 }),
    began('r1', 'train()', 2),
    written('b\n', { rank: 2 }),
    written('c\n', { rank: 0 })
  ];
  say(...both);
  await frame();
  assert.deepEqual(texts(host, '.jsky-log-title'), ['train()'], 'once, not for each rank');
  assert.deepEqual(lines(), ['0ac', '2b']);

  choose('How several ranks are shown', 'beside');
  say(...both);
  await frame();
  assert.deepEqual(texts(host, '.jsky-log-head'), ['rank 0', 'rank 2', 'rank 3']);
  assert.deepEqual(lines(), ['ac', 'b']);
  assert.deepEqual(texts(host, '.jsky-log-title'), ['train()', 'train()']);

  choose('Ranks, like 0,2-3 or all', 'all');
  assert.equal(followed.at(-1), '0-3');
});

test('ranks that are not there are told what there is', () => {
  for (const wrong of ['seven', '7', '', '1-']) {
    choose('Ranks, like 0,2-3 or all', wrong);
    assert.match(textOf(host, '.jsky-nothing'), /has ranks 0-3: type some of them/);
  }
  assert.deepEqual(followed, ['0']);
});

test('where nobody tells which ranks there are, those that are typed are asked for', async () => {
  open(null);
  const which = 'Ranks, like 0,2-3 or all';
  for (const named of ['7', '0,2-3', 'all']) {
    choose(which, named);
    assert.equal(followed.at(-1), named);
  }
  say(written('b\n', { rank: 5 }), written('a\n', { rank: 1 }));
  await frame();
  assert.deepEqual(lines(), ['5b', '1a'], 'merged: how many columns there are is not known');
  assert.ok(host.querySelector<HTMLElement>('select')!.closest('[hidden]'));
  host.querySelector<HTMLElement>('[aria-label="Save the whole log as a file"]')!.click();
  assert.deepEqual(saved, [1, 5]);
  choose(which, 'seven');
  assert.match(textOf(host, '.jsky-nothing'), /^Type ranks, like/);
  choose(which, '1,5');
  pane.know([0, 1, 2, 3, 4, 5]);
  assert.ok(!host.querySelector<HTMLElement>('select')!.closest('[hidden]'));
});

test('ranks that join later are followed where all are wanted', () => {
  choose('Ranks, like 0,2-3 or all', 'all');
  assert.deepEqual(followed, ['0', '0-3']);
  pane.know([0, 1, 2, 3]);
  pane.know([0, 1, 2, 3, 4, 5]);
  assert.deepEqual(followed, ['0', '0-3', '0-5']);
  choose('Ranks, like 0,2-3 or all', '5');
  pane.know([0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(followed, ['0', '0-3', '0-5', '5']);
});

test('a rank that was typed before it was there is followed once it is', () => {
  choose('Ranks, like 0,2-3 or all', '5');
  assert.match(textOf(host, '.jsky-nothing'), /has ranks 0-3: type some of them/);
  pane.know([0, 1, 2, 3]);
  assert.deepEqual(followed, ['0']);
  pane.know([0, 1, 2, 3, 4, 5]);
  assert.deepEqual(followed, ['0', '5']);
  assert.equal(textOf(host, '.jsky-nothing'), 'waiting for output');
  choose('Ranks, like 0,2-3 or all', '7');
  pane.release();
  pane.know([0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(followed, ['0', '5'], 'not in a tab that was closed');
});

test('what is searched for is marked and counted, and Enter goes to it', async () => {
  say(written('Loss 1\nother\nloss 2\n'));
  await frame();
  const field = search('loss');
  assert.deepEqual(texts(host, '.jsky-found'), ['Loss 1', 'loss 2']);
  assert.equal(textOf(host, '.jsky-log-hits'), '2 lines');
  for (const expected of ['1 of 2', '2 of 2', '1 of 2']) {
    field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
    assert.equal(textOf(host, '.jsky-log-hits'), expected);
  }
  assert.deepEqual(texts(host, '.jsky-found-now'), ['Loss 1']);
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
  assert.deepEqual(texts(host, '.jsky-found'), []);
  search('nowhere');
  assert.equal(textOf(host, '.jsky-log-hits'), '0 lines');
});

test('the title of a run is found as soon as it is there', async () => {
  search('train');
  say(began('r1', 'train()'), written('one\n'));
  await frame();
  await frame();
  assert.deepEqual(texts(host, '.jsky-found .jsky-log-title'), ['train()']);
  assert.equal(textOf(host, '.jsky-log-hits'), '1 line');
});

test('after a break, lines that come again are counted anew', async () => {
  say(written('loss 1\nloss 2\nloss 3\nloss 4\n'));
  await frame();
  const field = search('loss');
  for (let hit = 0; hit < 4; hit++) {
    field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
  }
  assert.equal(textOf(host, '.jsky-log-hits'), '4 of 4');
  breaks();
  say(written('loss 3\nloss 4\n'));
  await frame();
  await frame();
  assert.equal(textOf(host, '.jsky-log-hits'), '2 lines');
});

test('the whole log of the chosen ranks can be saved', () => {
  choose('Ranks, like 0,2-3 or all', '1,2');
  host.querySelector<HTMLElement>('[aria-label="Save the whole log as a file"]')!.click();
  assert.deepEqual(saved, [1, 2]);
  const many = Array.from({ length: 32 }, (_, rank) => rank);
  pane.know(many);
  choose('Ranks, like 0,2-3 or all', 'all');
  saved = [];
  host.querySelector<HTMLElement>('[aria-label="Save the whole log as a file"]')!.click();
  assert.deepEqual(saved, many, 'more than there are columns');
});
