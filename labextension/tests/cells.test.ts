import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Record } from '../src/api.ts';
import { sample } from './page.ts';

// These need a document when they are loaded.
const { addLine, endBackground, hasBeginning, outputOf, replaceOutputs, runOf } = await import(
  '../src/cells/cells.ts'
);
const { MIME } = await import('../src/cells/record.ts');

type Cell = Parameters<typeof replaceOutputs>[0];
type Output = ReturnType<typeof outputOf>;

test('a record stays below what was said of its cluster, and above what was printed', () => {
  const record = (): Record => ({ snapshot: sample(), html: '', plain: '', text: 'step 0\nstep 1\n', cut: false });
  const said = { output_type: 'display_data', metadata: {}, data: { 'text/plain': 'ready in 0.3 s' } };
  const printed = { output_type: 'stream', name: 'stdout', text: 'step 0\n' };
  let outputs: Output[] = [said, outputOf(record(), true), printed];
  const cell = {
    model: { outputs: { toJSON: () => outputs, fromJSON: (given: Output[]) => void (outputs = given) } }
  } as unknown as Cell;
  const shown = () => outputs.map((output) => runOf(output) ?? output.text ?? 'said');

  replaceOutputs(cell, record(), null);
  assert.deepEqual(shown(), ['said', 'r1', 'step 0\n']);
  replaceOutputs(cell, record(), '');
  assert.deepEqual(shown(), ['said', 'r1', 'step 0\nstep 1\n']);

  const later = record();
  later.snapshot.run!.id = 'r2';
  replaceOutputs(cell, later, null);
  assert.deepEqual(shown(), ['r2'], 'what belongs to an earlier run is outdated');
});

test('an output of another version is of no run', () => {
  for (const data of [undefined, {}, { [MIME]: { version: 2 } }, { [MIME]: null }, { [MIME]: { snapshot: null } }]) {
    assert.equal(runOf({ output_type: 'display_data', data } as Output), null);
  }
});

test('each attempt at a cell has its own place in it', () => {
  const record = (id: string, earlier: string[]): Record => {
    const snapshot = sample();
    snapshot.run = { ...snapshot.run!, id, earlier };
    return { snapshot, html: '', plain: '', text: `all of ${id}\n`, cut: false };
  };
  const printed = (text: string) => ({ output_type: 'stream', name: 'stdout', text });
  let outputs: Output[] = [outputOf(record('r1', []), true), printed('r1 is lost\n')];
  const cell = {
    model: { outputs: { toJSON: () => outputs, fromJSON: (given: Output[]) => void (outputs = given) } }
  } as unknown as Cell;
  const shown = () => outputs.map((output) => runOf(output) ?? output.text);

  // A page that is opened during the third attempt has seen only the first.
  replaceOutputs(cell, record('r3', ['r1', 'r2']), null);
  assert.deepEqual(shown(), ['r1', 'r1 is lost\n', 'r3']);
  outputs.push({ ...printed('all of r3\n'), name: 'stderr' });
  assert.ok(!hasBeginning(cell, record('r3', ['r1', 'r2'])));
  replaceOutputs(cell, record('r3', ['r1', 'r2']), '');
  assert.deepEqual(shown(), ['r1', 'r1 is lost\n', 'r3', 'all of r3\n']);
  assert.ok(hasBeginning(cell, record('r3', ['r1', 'r2'])));
  replaceOutputs(cell, record('r1', []), '');
  assert.deepEqual(shown(), ['r1', 'r1 is lost\nall of r1\n', 'r3', 'all of r3\n']);

  replaceOutputs(cell, record('r5', ['r4']), null);
  assert.deepEqual(shown(), ['r5'], 'they belong to an earlier time that the cell was run');
});

/** Returns what a cell that has printed something shows once output is restored from a record. */
function restore(there: string[], text: string, cut: boolean) {
  const record = { snapshot: sample(), html: '', plain: '', text, cut };
  const streams = there.map((each) => ({ output_type: 'stream', name: 'stdout', text: each }));
  let outputs: Output[] = [outputOf(record, true), ...streams];
  const cell = {
    model: { outputs: { toJSON: () => outputs, fromJSON: (given: Output[]) => void (outputs = given) } }
  } as unknown as Cell;
  replaceOutputs(cell, record, '[missing]');
  return outputs.slice(1).map((output) => output.text);
}

test('what only the cell has stays where output is restored', () => {
  const restored = (there: string[], text: string) => restore(there, text, false);
  const answer = 'learning rate?  0.1\n';
  assert.deepEqual(restored([answer, '0\n1\n'], '0\n1\n2\n'), [`${answer}0\n1\n2\n`]);
  assert.deepEqual(restored(['a\n', answer, '0\n'], 'a\n0\n\n1\n'), [`a\n${answer}0\n\n1\n`]);
  assert.deepEqual(restored(['a\n', answer], 'a\nb\nc'), [`a\n${answer}b\nc`]);
  const session = ['> cell [1], line 1\n\n', '(Pdb) p 1+1\n2\n'];
  assert.deepEqual(restored(session, ''), session);
  const asked = '(Pdb) p lr\n0.5\n(Pdb) c\n';
  assert.deepEqual(restored([`step 0\n${asked}`], 'step 0\nloss 0.5\n'), [`step 0\n${asked}loss 0.5\n`]);
  // The record has all of the rest, in the order in which it was printed.
  assert.deepEqual(restored(['a\n', 'b\nst'], 'a\nc\nb\nstep\n'), ['a\nc\nb\nstep\n']);
  assert.deepEqual(restored(['10%'], ' 5%\r10%\r15%'), [' 5%\r10%\r15%']);
  assert.deepEqual(restored(['9 leftt'], '10 left\r9 left\r8 left'), ['10 left\r9 left\r8 left']);
  assert.deepEqual(restored([' 0 │ 10%\n 1 │ 10%'], ' 0 │ 15%\n 1 │ 12%\n'), [
    ' 0 │ 15%\n 1 │ 12%\n'
  ]);
});

test('a record without the beginning takes nothing from the cell', () => {
  const restored = (there: string[], text: string) => restore(there, text, true);
  assert.deepEqual(restored(['0\n1\n', '2\n'], '2\n3\n'), ['0\n1\n2\n3\n']);
  assert.deepEqual(restored(['step 0\nstep 1\nst'], 'p 1\nstep 2\n'), ['step 0\nstep 1\nstep 2\n']);
  assert.deepEqual(restored(['0\n0\n1\n'], '0\n1\n2\n'), ['0\n0\n1\n2\n']);
  assert.deepEqual(restored(['0\n2\n'], '2\n3\n'), ['0\n2\n3\n']);
  assert.deepEqual(restored(['0\n 9%\n2\n'], ' 1%\r 9%\n2\n3\n'), ['0\n 9%\n2\n3\n']);
  assert.deepEqual(restored(['0\n2\n100%|\n'], '2\n 99%|\r100%\n3\n'), ['0\n2\n 99%|\r100%\n3\n']);
  // What is in between is gone.
  assert.deepEqual(restored(['0\n1'], '8\n9\n'), ['0\n1\n[missing]\n8\n9\n']);
  assert.deepEqual(restored(['0\n8\n1\n'], '8\n9\n'), ['0\n8\n1\n[missing]\n8\n9\n']);
  assert.deepEqual(restored([], '8\n9\n'), ['[missing]\n8\n9\n']);
  assert.deepEqual(restored(['0\n'], ''), ['0\n[missing]\n'], 'nothing of it is kept');
});

test('where a cell gets no more of what is printed, a line says so until it is restored', () => {
  const { run } = sample();
  const snapshot = sample();
  const strip = outputOf({ snapshot, html: '', plain: '', text: '', cut: false }, true);
  const printed = (text: string) => ({ output_type: 'stream', name: 'stdout', text });
  const marked = (there: Output[]) => {
    let outputs = there;
    const add = (output: Output) => void (outputs = [...outputs, output]);
    const fromJSON = (given: Output[]) => void (outputs = given);
    const cell = { model: { outputs: { toJSON: () => outputs, add, fromJSON } } } as unknown as Cell;
    addLine(cell, run!, '[missing]');
    addLine(cell, run!, '[missing]');
    return outputs.map((output) => runOf(output) ?? output.text);
  };
  assert.deepEqual(marked([strip, printed('0\n')]), ['r1', '0\n', '[missing]\n']);
  assert.deepEqual(marked([strip, printed('0\n1')]), ['r1', '0\n1', '\n[missing]\n']);
  const other = structuredClone(strip);
  (other.data as any)[MIME].snapshot.run.id = 'r2';
  assert.deepEqual(marked([strip, other]), ['r1', '[missing]\n', 'r2']);
  assert.deepEqual(marked([printed('0\n')]), ['0\n'], 'the cell no longer shows the run');
  assert.deepEqual(restore(['0\n', '[missing]\n'], '0\n1\n', false), ['0\n1\n']);
  assert.deepEqual(restore(['0\n1\n[missing]\n'], '1\n2\n', true), ['0\n1\n2\n']);
  assert.deepEqual(restore(['0\n[missing]\n'], '2\n', true), ['0\n[missing]\n2\n']);
});

test('the end of a run in the background is shown below its own strip', () => {
  const strip = (run: string): Output => {
    const snapshot = sample();
    snapshot.run!.id = run;
    return outputOf({ snapshot, html: '', plain: '', text: '', cut: false }, true);
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
