import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Feed } from '../src/cells/feed.ts';
import type { Curve, Snapshot } from '../src/snapshot.ts';

const LOSS = { name: 'loss' } as Curve;

function snapshot(seconds: number, curves: Curve[], state = 'running'): Snapshot {
  const run = { id: 'r1', state, started: 1.7e9, seconds };
  return { run, curves, output: { rank: 0, text: '' } } as unknown as Snapshot;
}

test('what the server has of a run takes the place of nothing that is later', () => {
  const feed = new Feed();
  const curves = () => feed.get('r1')?.snapshot.curves.length;
  feed.take(snapshot(5, [LOSS]), 'kernel');
  feed.take(snapshot(4, []), 'server');
  assert.equal(curves(), 1, 'the kernel has told more since it wrote that down');
  feed.take(snapshot(6, [LOSS, LOSS]), 'server');
  assert.equal(curves(), 2, 'the page has missed this');
  // How a run ended is told by clocks of nodes.
  feed.take(snapshot(5.9, [LOSS], 'ok'), 'server');
  assert.equal(feed.get('r1')?.snapshot.run?.state, 'ok');
});
