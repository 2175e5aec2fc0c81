import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { LogChunk } from '../src/api.ts';
import { english } from '../src/words.ts';
import { chunk, frame, place, sample, textOf, written } from './page.ts';

// These need a document when they are loaded.
const { Feed } = await import('../src/cells/feed.ts');
const { FollowedRanks } = await import('../src/cells/followed.ts');
const { MIME } = await import('../src/cells/record.ts');
const { RunStrip } = await import('../src/cells/strip.ts');
const { Widget } = await import('@lumino/widgets');

type Arguments = ConstructorParameters<typeof RunStrip>;

/** A page that was loaded again: its kernel does not tell of the run. */
class Page {
  readonly feed = new Feed();
  readonly host = place();
  readonly followed: string[] = [];
  isIncomplete = false;
  say: (chunk: LogChunk, isFirst?: boolean) => void = () => {};
  readonly #strips: InstanceType<typeof RunStrip>[] = [];
  readonly #ranks = new FollowedRanks(
    this.feed,
    (cluster, rank, onChunk) => {
      const name = `${cluster}:${rank}`;
      this.followed.push(name);
      this.say = ({ entries, end }, isFirst = false) => {
        // The last lines of a log begin with the run that they are of.
        const begins = isFirst && entries.length > 0 ? [written('', { run: 'r1' })] : [];
        onChunk({ entries: [...begins, ...entries], end }, isFirst);
      };
      return () => void this.followed.splice(this.followed.indexOf(name), 1);
    },
    () => this.isIncomplete
  );
  readonly #page = {
    hasSidebar: true,
    address: (path: string) => path,
    act: (action, strip) => action.kind === 'select' && this.#ranks.follow(strip),
    isIncomplete: () => this.isIncomplete,
    followSelected: (strip) => this.#ranks.follow(strip),
    askOf: () => null,
    attached: (strip) => this.#ranks.follow(strip),
    detached: (strip) => this.#ranks.unfollow(strip)
  } as Arguments[1];

  constructor(t: TestContext) {
    t.after(() => {
      this.#strips.forEach((strip) => strip.dispose());
      this.host.remove();
    });
  }

  async add(): Promise<InstanceType<typeof RunStrip>> {
    const strip = new RunStrip(this.feed, this.#page, english as Arguments[2]);
    const data = { [MIME]: { version: 1, open: true, snapshot: sample() } };
    await strip.renderModel({ data } as unknown as Parameters<typeof strip.renderModel>[0]);
    Widget.attach(strip, this.host);
    this.#strips.push(strip);
    return strip;
  }

  /** Clicks on a rank. */
  choose(rank: number): void {
    this.host.querySelector<HTMLElement>(`[data-rank="${rank}"]`)!.click();
  }

  get shown(): string {
    return textOf(this.host, '.jsky-output .jsky-text');
  }
}

test('a rank that prints all the time is shown once in each frame, and its end is kept', async (t) => {
  const page = new Page(t);
  await page.add();
  page.choose(2);
  assert.deepEqual(page.followed, ['c1:2']);
  let changes = 0;
  page.feed.changed.connect(() => void changes++);
  for (let step = 0; step < 100; step++) {
    page.say(chunk(`${'x'.repeat(9999)}\n`), step === 0);
  }
  page.say(chunk('the end\n'));
  await frame();
  assert.equal(changes, 1);
  assert.match(page.shown, /the end$/);
  assert.equal(page.feed.get('r1')!.snapshot.output.text.length, 100_000);
  page.say(chunk('of rank 2\n'));
  page.choose(3);
  page.say(chunk('of rank 3\n'), true);
  await frame();
  assert.deepEqual(page.followed, ['c1:3']);
  assert.equal(page.shown, 'of rank 3');
});

test('a strip that takes the place of another goes on with the rank that is selected there', async (t) => {
  const page = new Page(t);
  const before = await page.add();
  page.choose(2);
  page.say(chunk('before\n'), true);
  await frame();
  before.dispose();
  assert.deepEqual(page.followed, []);
  const strip = await page.add();
  assert.deepEqual(page.followed, ['c1:2']);
  page.say(chunk('before\nafter\n'), true);
  await frame();
  assert.equal(page.shown, 'beforeafter');
  Widget.detach(strip);
  assert.deepEqual(page.followed, []);
  Widget.attach(strip, page.host);
  assert.deepEqual(page.followed, ['c1:2'], 'a cell that was out of view');
  page.choose(2);
  assert.deepEqual(page.followed, [], 'a second click hides it');
});

test('a rank that the cell shows is followed while the cell lacks some of it', async (t) => {
  const page = new Page(t);
  const strip = await page.add();
  page.choose(0);
  assert.deepEqual(page.followed, []);
  page.isIncomplete = true; // as is known only once the server has told of the run
  strip.refresh();
  assert.deepEqual(page.followed, ['c1:0']);
  page.say(chunk('missed\n'), true);
  await frame();
  assert.equal(page.shown, 'missed');
  strip.refresh();
  assert.deepEqual(page.followed, ['c1:0']);
  page.isIncomplete = false; // its output was restored
  strip.refresh();
  assert.deepEqual(page.followed, []);
  assert.match(textOf(page.host, '.jsky-output-head'), /The cell shows what this rank prints/);
});

test('what a rank printed in the run before is not shown as output of this one', async (t) => {
  const page = new Page(t);
  await page.add();
  page.choose(3);
  const former = [written('', { run: 'r0' }), written('former\n')];
  page.say({ entries: former, end: null }, true);
  await frame();
  assert.equal(page.shown, '');
  page.say({ entries: [written('', { run: 'r1' }), written('present\n')], end: null });
  page.say(chunk('more\n'));
  await frame();
  assert.equal(page.shown, 'presentmore');
  page.say({ entries: [written('', { run: 'r2' }), written('later\n')], end: null });
  await frame();
  assert.equal(page.shown, 'presentmore');
});

test('where nobody tells more of a rank, what it has printed stays', async (t) => {
  const page = new Page(t);
  const strip = await page.add();
  page.choose(2);
  page.say(chunk('last words\n'), true);
  await frame();
  Widget.detach(strip);
  Widget.attach(strip, page.host); // as it comes into view again
  page.say({ entries: [], end: 'no cluster' }, true);
  await frame();
  assert.match(page.shown, /last words$/);
  Widget.detach(strip);
  page.feed.explain('r1', 'Its cluster has ended.', true);
  Widget.attach(strip, page.host);
  assert.deepEqual(page.followed, []);
});
