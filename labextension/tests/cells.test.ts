import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Record } from '../src/api.ts';
import { sample } from './page.ts';

// These need a document when they are loaded.
const { endBackground, outputOf, replaceOutputs, runOf } = await import('../src/cells/cells.ts');

type Cell = Parameters<typeof replaceOutputs>[0];
type Output = ReturnType<typeof outputOf>;

test('a record stays below what was said of its cluster, and above what was printed', () => {
  const record = (): Record => ({ snapshot: sample(), html: '', plain: '', text: 'step 0\nstep 1\n' });
  const said = { output_type: 'display_data', metadata: {}, data: { 'text/plain': 'ready in 0.3 s' } };
  const printed = { output_type: 'stream', name: 'stdout', text: 'step 0\n' };
  let outputs: Output[] = [said, outputOf(record(), true), printed];
  const cell = {
    model: { outputs: { toJSON: () => outputs, fromJSON: (given: Output[]) => void (outputs = given) } }
  } as unknown as Cell;
  const shown = () => outputs.map((output) => runOf(output) ?? output.text ?? 'said');

  replaceOutputs(cell, record(), null);
  assert.deepEqual(shown(), ['said', 'r1', 'step 0\n']);
  replaceOutputs(cell, record(), 'step 0\nstep 1\n');
  assert.deepEqual(shown(), ['said', 'r1', 'step 0\nstep 1\n']);

  const later = record();
  later.snapshot.run!.id = 'r2';
  replaceOutputs(cell, later, null);
  assert.deepEqual(shown(), ['r2'], 'what belongs to an earlier run is outdated');
});

test('the end of a run in the background is shown below its own strip', () => {
  const strip = (run: string): Output => {
    const snapshot = sample();
    snapshot.run!.id = run;
    return outputOf({ snapshot, html: '', plain: '', text: '' }, true);
  };
  const text = (background: string): Output => ({
    output_type: 'display_data',
    metadata: { jupyter_sky: { background } },
    data: { 'text/plain': 'begun' }
  });
  // The first has lost a rank, and its strip shows the next attempt.
  const outputs = [strip('r1b'), text('r1'), strip('r2'), text('r2')];
  const set = (at: number, output: Output) => void (outputs[at] = output);
  const cell = { model: { outputs: { toJSON: () => [...outputs], set } } } as unknown as Cell;
  const shown = () =>
    [1, 3].map((at) => (outputs[at]!.data as { [type: string]: unknown })['text/plain']);

  endBackground(cell, 'r1b', 'begun\nfirst\n');
  assert.deepEqual(shown(), ['begun\nfirst', 'begun']);
  endBackground(cell, 'r2', 'second\n');
  assert.deepEqual(shown(), ['begun\nfirst', 'second']);
});
