import assert from 'node:assert/strict';
import { test } from 'node:test';
import { linesOf, pieces, plain } from '../src/text.ts';
import { NESTED } from './page.ts';
import { duration, money, rankRanges, share, size } from '../src/words.ts';

const styled = (line: string) => pieces(line).map(({ text, style }) => [text, style]);

test('colours and weights become classes', () => {
  assert.deepEqual(styled('a\x1b[1;31mb\x1b[22mc\x1b[39md'), [
    ['a', ''],
    ['b', 'jsky-ansi-bold jsky-ansi-1'],
    ['c', 'jsky-ansi-1'],
    ['d', '']
  ]);
  assert.deepEqual(styled('\x1b[2;3;4mx\x1b[23;24my\x1b[mz'), [
    ['x', 'jsky-ansi-dim jsky-ansi-italic jsky-ansi-underline'],
    ['y', 'jsky-ansi-dim'],
    ['z', '']
  ]);
  assert.deepEqual(styled('\x1b[94mx'), [['x', 'jsky-ansi-12']]);
});

test('of 256 colours the first sixteen are shown, of sixteen million none', () => {
  assert.deepEqual(styled('\x1b[38;5;12mx'), [['x', 'jsky-ansi-12']]);
  assert.deepEqual(styled('\x1b[38;5;208mx'), [['x', '']]);
  assert.deepEqual(styled('\x1b[38;2;31;1;1;1mx'), [['x', 'jsky-ansi-bold']]);
  assert.deepEqual(styled('\x1b[48;5;4;32mx'), [['x', 'jsky-ansi-2']]);
});

test('other escapes, and those that never end, leave nothing', () => {
  assert.equal(plain('a\x1b[2Kb\x1b[?25lc\x1b]8;;http://x\x1b\\d\x1b(Be\x1b'), 'abcde');
  assert.equal(plain('a\x1b]0;never ended'), 'a');
  assert.equal(plain('a\x1b[38;5'), 'a');
  assert.equal(plain('a\x9b31mb\x90c\x9cd'), 'abd');
});

test('a class name is never made from what a rank prints', () => {
  const odd = '\x1b[__proto__m\x1b[999m\x1b[constructorm\x1b[1e1m\x1b[-1mx';
  assert.ok(pieces(odd).every(({ style }) => /^(jsky-ansi-\w+ ?)*$/.test(style)));
});

test('control characters and changes of direction are gone', () => {
  assert.equal(plain('\0a\b\x07\x7f\x85b\u202ec\u2066d\u200fe\ufeff'), 'abcde');
  assert.equal(plain(' one\ttwo\r\nthree\u2028four '), 'one two three four');
  assert.equal(plain('naïve 日本 🙂 مرحبا'), 'naïve 日本 🙂 مرحبا');
});

test('a carriage return overwrites the line', () => {
  assert.deepEqual(linesOf('10%\r20%\r30%\ndone\r\n'), ['30%', 'done', '']);
});

test('bars below each other stay in their lines', () => {
  assert.deepEqual(linesOf(`before\n${NESTED}`), ['before', 'epochs 1/2', 'batches 2/2']);
  const ended = `${NESTED}\n\r           \r\x1b[A\repochs 2/2`;
  assert.deepEqual(linesOf(ended), ['epochs 2/2']);
  assert.deepEqual(linesOf(`${ended}\nafter\n`), ['epochs 2/2', 'after', '']);
  // Rich draws several lines at once, and what is cut off at the top is not there to go back to.
  assert.deepEqual(linesOf('a 1\nb 1\n\x1b[2A\r\x1b[2Ka 2\n\x1b[2Kb 2\n').map(plain), ['a 2', 'b 2', '']);
  assert.deepEqual(linesOf('a\x1b[9Ab\x1b[999B'), ['b'], 'there is nothing above, nor below');
  assert.deepEqual(linesOf('\x1b[31mred\x1b[0m\nblue'), ['\x1b[31mred\x1b[0m', 'blue']);
});

test('a line that is very long is cut, in no time', () => {
  assert.equal(linesOf('x'.repeat(5_000_000))[0], `${'x'.repeat(2000)}…`);
  const slow = '\x1b]'.repeat(20_000) + '\x1b['.repeat(20_000);
  assert.equal(plain(slow), '');
});

test('figures', () => {
  assert.deepEqual([0, 999, 1234, 12_345, 123_456_789, 2e12].map(size), [
    '0 B',
    '999 B',
    '1.23 kB',
    '12.3 kB',
    '123 MB',
    '2 TB'
  ]);
  assert.equal(share([12.1e9, 40e9]), '12.1 / 40 GB');
  assert.equal(share([80e6, 16e9]), '0.08 / 16 GB');
  assert.deepEqual(
    [0, 42, 61, 3723].map((seconds) => duration(seconds, false)),
    ['0 s', '42 s', '1:01', '1:02:03']
  );
  assert.equal(duration(4.21, true), '4.2 s');
  assert.deepEqual([0, 1e-6, 0.0123].map(money), ['$0.00', '< $0.0001', '$0.0123']);
  assert.deepEqual([0.5, 1234.5].map(money), ['$0.50', '$1,234.50']);
  assert.equal(rankRanges([0, 1, 2, 5, 7, 8]), '0-2, 5, 7-8');
});
