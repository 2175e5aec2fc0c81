import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromSaved, toSaved } from '../src/cells/record.ts';
import { sample } from './page.ts';

test('a saved record has what its ranks have, and is shown as before', () => {
  const shown = sample(2);
  const [first, second] = shown.ranks;
  Object.assign(first!, { gpu: 0, seconds: 0, line: '', outcome: null, memory: null, utilisation: null });
  const saved = JSON.parse(JSON.stringify(toSaved(shown)));
  assert.deepEqual(saved.ranks[0], { rank: 0, node: 0, phase: first!.phase, gpu: 0, seconds: 0 });
  assert.deepEqual(fromSaved(saved).ranks, [first, second]);
});
