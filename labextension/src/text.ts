/* Output of ranks can be anything. Here it becomes harmless text, in pieces of one style each. */

import type { Place } from './action.ts';

/** A piece of a line; `style` is a list of class names. */
export interface Piece {
  text: string;
  style: string;
}

const LONGEST = 2000;
const MOST_LINES = 400;

/* Everything that follows an escape: CSI (colours, cursor), strings (titles, links), the others. */
const ESCAPE =
  /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?/g;
const COLOURS = /^(?:\x1b\[|\x9b)([\d;]*)m$/;

/* Control characters, and those that change the direction of the text around them. */
const INVISIBLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Returns text without escapes and control characters, on one line. */
export function plain(text: string): string {
  return harmless(text.replace(ESCAPE, '')).replace(/\s+/g, ' ').trim();
}

/** Returns text without escapes and control characters, with its lines and their indentation. */
export function plainLines(text: string): string {
  const lines = text.replace(ESCAPE, '').split('\n').slice(0, MOST_LINES);
  return lines.map((line) => harmless(line).slice(0, LONGEST).trimEnd()).join('\n');
}

/** Returns the lines of a text as a terminal shows them, without what is overwritten; long ones are
    cut. */
export function linesOf(text: string): string[] {
  return rowsOf(text)
    .map(lastWritten)
    .map((line) => (line.length > LONGEST ? `${line.slice(0, LONGEST)}…` : line));
}

/** Returns what is written into each row; what overwrites it begins with a carriage return. */
function rowsOf(text: string): string[] {
  if (!text.includes('\x1b[')) {
    return text.split('\n');
  }
  const rows = [''];
  let at = 0;
  for (const part of partsOf(text)) {
    const next = rowAfter(part, at, rows.length);
    if (next === null) {
      rows[at] += part;
    } else {
      at = next;
      rows[at] = at < rows.length ? `${rows[at]}\r` : '';
    }
  }
  // A bar below another one leaves an empty row when it ends.
  while (rows.length > at + 1 && lastWritten(rows.at(-1)!).trim() === '') {
    rows.pop();
  }
  return rows;
}

/** Returns the parts of a text: what is written into one row, or moves the cursor to another. */
export function partsOf(text: string): string[] {
  return text.split(/(\n|\x1b\[\d{0,3}[AB])/).filter(Boolean);
}

/** Returns the row of the cursor after a part that moves it from a row, one of `count` or the next;
    null if it does not. */
export function rowAfter(part: string, row: number, count: number): number | null {
  if (part === '\n') {
    return row + 1;
  }
  const [, by, direction] = /^\x1b\[(\d*)([AB])$/.exec(part) ?? [];
  if (direction === 'A') {
    return Math.max(0, row - Number(by || 1));
  }
  return direction === 'B' ? Math.min(Math.max(row, count - 1), row + Number(by || 1)) : null;
}

/** Returns what was written last into a row. */
export function lastWritten(row: string): string {
  const written = row.replace(/\r+$/, '');
  return written.slice(written.lastIndexOf('\r') + 1);
}

/** Returns the line of code that a line of a traceback names. */
export function placeIn(text: string): Place | null {
  const cell = /^Cell In\[(\d+)\], line (\d+)/.exec(text);
  if (cell) {
    return { cell: Number(cell[1]), file: null, line: Number(cell[2]) };
  }
  const file = /^File (?:"([^"]+)", line (\d+)|(\S+\.py):(\d+))/.exec(text);
  return file && { cell: null, file: file[1] ?? file[3]!, line: Number(file[2] ?? file[4]) };
}

/** Returns a line in pieces of one style each. */
export function pieces(line: string): Piece[] {
  const found: Piece[] = [];
  let style = new Style();
  let from = 0;
  const add = (to: number) => {
    const text = harmless(line.slice(from, to));
    if (text) {
      found.push({ text, style: style.names });
    }
  };
  for (const match of line.matchAll(ESCAPE)) {
    add(match.index);
    from = match.index + match[0].length;
    const codes = COLOURS.exec(match[0]);
    if (codes) {
      style = style.after((codes[1] ?? '').split(';').map(Number));
    }
  }
  add(line.length);
  return found;
}

function harmless(text: string): string {
  return text.replace(/[\u2028\u2029]/g, ' ').replace(INVISIBLE, '');
}

class Style {
  readonly #parts: ReadonlyMap<string, string>;

  constructor(parts: ReadonlyMap<string, string> = new Map()) {
    this.#parts = parts;
  }

  get names(): string {
    return [...this.#parts.values()].map((name) => `jsky-ansi-${name}`).join(' ');
  }

  /** Returns the style after "select graphic rendition" codes; those of other kinds change nothing. */
  after(codes: number[]): Style {
    const parts = new Map(this.#parts);
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at]!;
      if (code === 0) {
        parts.clear();
      } else if (code === 38 || code === 48) {
        // One of 256 colours, or red, green and blue: of these we show the first 16.
        const colour = codes[at + 2] ?? 16;
        if (code === 38) {
          parts.delete('colour');
          if (codes[at + 1] === 5 && colour < 16) {
            parts.set('colour', String(colour));
          }
        }
        at += codes[at + 1] === 2 ? 4 : 2;
      } else if (code === 22) {
        parts.delete('bold');
        parts.delete('dim');
      } else if (code === 39) {
        parts.delete('colour');
      } else if (code >= 30 && code <= 37) {
        parts.set('colour', String(code - 30));
      } else if (code >= 90 && code <= 97) {
        parts.set('colour', String(code - 82));
      } else {
        const name = ['', 'bold', 'dim', 'italic', 'underline'][code];
        const ended = ['italic', 'underline'][code - 23];
        if (name) {
          parts.set(name, name);
        } else if (ended) {
          parts.delete(ended);
        }
      }
    }
    return new Style(parts);
  }
}
