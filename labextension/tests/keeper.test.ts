import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { IClusters } from '../src/lab/clusters.ts';
import { english } from '../src/words.ts';
import { sample } from './page.ts';

// These need a document when they are loaded.
const { Keeper } = await import('../src/cells/keeper.ts');
const { Feed } = await import('../src/cells/feed.ts');

type Arguments = ConstructorParameters<typeof Keeper>;
type Strip = Parameters<InstanceType<typeof Keeper>['add']>[0];

test('a run whose end only the kernel tells of can have missing output', (t) => {
  const feed = new Feed();
  const clusters = { changed: { connect: () => {} } } as unknown as IClusters;
  const cells = { cellOf: () => undefined } as unknown as Arguments[2];
  const keeper = new Keeper(clusters, feed, cells, english as Arguments[3]);
  const running = sample();
  feed.take(running, 'output');
  const ended = { ...running, run: { ...running.run!, state: 'ok' as const } };
  const strip = { run: 'r1', hasEnd: false, snapshot: ended, isVisible: true } as unknown as Strip;
  keeper.add(strip);
  t.after(() => keeper.remove(strip));
  assert.ok(!keeper.isIncomplete(strip));
  feed.take(ended, 'kernel');
  assert.ok(keeper.isIncomplete(strip), 'the notebook was saved before that');
  keeper.comesHere('r1');
  assert.ok(!keeper.isIncomplete(strip));
});
