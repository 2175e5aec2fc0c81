/* The cells of the open notebooks, as far as runs are shown in them: which one a strip is in, its
   outputs, the lines of its code. */

import type { CodeCell } from '@jupyterlab/cells';
import type { IDisplayData, IOutput } from '@jupyterlab/nbformat';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { JSONExt } from '@lumino/coreutils';
import type { Record as RunRecord } from '../api.ts';
import type { Place } from '../action.ts';
import type { Run } from '../snapshot.ts';
import { lastWritten } from '../text.ts';
import { MIME, toSaved, type RunOutput } from './record.ts';

/** Lines of a run in the background that its cell shows, as the kernel does. */
const BACKGROUND_LINES = 40;

/** A line of one of several ranks. */
const LABELLED = /^ *\d+ │ /;

export class Cells {
  readonly #tracker: INotebookTracker;

  constructor(tracker: INotebookTracker) {
    this.#tracker = tracker;
  }

  /** The notebook that an element is in. */
  notebookOf(node: HTMLElement): NotebookPanel | undefined {
    return this.#tracker.find((panel) => panel.node.contains(node));
  }

  /** The open notebooks of a kernel. */
  notebooksOf(kernel: string): NotebookPanel[] {
    return this.#tracker.filter(({ sessionContext }) => sessionContext.session?.kernel?.id === kernel);
  }

  cellOf(node: HTMLElement): CodeCell | undefined {
    const cells = this.notebookOf(node)?.content.widgets ?? [];
    return cells.find((cell) => cell.node.contains(node)) as CodeCell | undefined;
  }

  /** Shows a line of a notebook's cell, given the cell's number. */
  go(panel: NotebookPanel, { cell: number, line }: Place): void {
    const { content } = panel;
    const at = content.widgets.findIndex(
      ({ model }) => model.type === 'code' && (model as any).executionCount === number
    );
    const cell = content.widgets[at];
    if (cell) {
      content.activeCellIndex = at;
      void content.scrollToItem(at, 'smart');
      cell.editor?.setCursorPosition({ line: Math.max(0, line - 1), column: 0 });
      content.mode = 'edit';
    }
  }
}

/** Returns the run that an output shows; null of one that another version has made. */
export function runOf(output: IOutput): string | null {
  const data = output.data as { [type: string]: unknown } | undefined;
  return (data?.[MIME] as Partial<RunOutput> | undefined)?.snapshot?.run?.id ?? null;
}

export function hasRun({ model }: CodeCell, run: string): boolean {
  return model.outputs.toJSON().some((output) => runOf(output) === run);
}

/** Returns the mark of an output that has what a run in the background prints. */
export function backgroundOf(output: IOutput): string | null {
  const { metadata } = output as { metadata?: { jupyter_sky?: { background?: string } } };
  return metadata?.jupyter_sky?.background ?? null;
}

/** Updates the outputs that show a run, or what it prints in the background, where JupyterLab has not:
    it no longer knows the display of an output whose cell was moved, copied, or deleted and brought
    back, and none after a reload of the page. */
export function updateOutputs({ content }: NotebookPanel, shown: IDisplayData): void {
  const part = runOf(shown) === null ? 'text/plain' : MIME;
  for (const { model } of content.widgets) {
    if (model.type === 'code') {
      const { outputs } = model as CodeCell['model'];
      outputs.toJSON().forEach((output, at) => {
        const isSame = runOf(output) === runOf(shown) && backgroundOf(output) === backgroundOf(shown);
        const data = output.data as IDisplayData['data'] | undefined;
        if (isSame && !JSONExt.deepEqual(data![part] as any, shown.data[part] as any)) {
          outputs.set(at, shown);
        }
      });
    }
  }
}

/** Shows the end of what a run in the background has printed below its strip, unless its kernel has
    shown it. */
export function endBackground({ model: { outputs } }: CodeCell, run: string, text: string): void {
  const lines = text.trimEnd().split('\n').slice(-BACKGROUND_LINES);
  let above: string | null = null; // the mark of an output has the first attempt, a strip the last
  outputs.toJSON().forEach((output, at) => {
    above = runOf(output) ?? above;
    const shown = (output.data as { 'text/plain'?: string } | undefined)?.['text/plain'] ?? '';
    if (above === run && backgroundOf(output) && !shown.includes(lines.at(-1)!)) {
      outputs.set(at, { ...output, data: { 'text/plain': lines.join('\n') } });
    }
  });
}

/** The outputs of a cell: those of a run, which begin with its strip, and those above and after them. */
interface Parts {
  above: IOutput[];
  own: IOutput[];
  after: IOutput[];
}

function partsOf(outputs: IOutput[], { id, earlier }: Run): Parts {
  const at = outputs.findIndex((output) => runOf(output) === id);
  if (at < 0) {
    // Attempts before it stay; the output of any other run there is outdated.
    const isAttempt = outputs.some((output) => earlier?.includes(runOf(output) ?? ''));
    return { above: isAttempt ? outputs : [], own: [], after: [] };
  }
  const isOther = (output: IOutput) => ![null, id].includes(runOf(output));
  const next = outputs.findIndex((output, place) => place > at && isOther(output));
  const end = next < 0 ? outputs.length : next;
  return { above: outputs.slice(0, at), own: outputs.slice(at, end), after: outputs.slice(end) };
}

/** Returns printed outputs, those before the first of them, and the rest. */
function aroundPrinted(outputs: IOutput[]): { before: IOutput[]; printed: IOutput[]; rest: IOutput[] } {
  const isPrinted = ({ output_type }: IOutput) => output_type === 'stream';
  const first = outputs.findIndex(isPrinted);
  const before = first < 0 ? outputs : outputs.slice(0, first);
  const after = outputs.slice(before.length);
  return {
    before,
    printed: after.filter(isPrinted),
    rest: after.filter((output) => !isPrinted(output))
  };
}

function textOf(printed: IOutput[]): string {
  return printed.map(({ text }) => [text].flat().join('')).join('');
}

/** Whether a cell has the beginning of what a run has printed, with nothing else in between, so that a
    record has more. */
export function hasBeginning({ model }: CodeCell, { snapshot, text }: RunRecord): boolean {
  const { own } = partsOf(model.outputs.toJSON(), snapshot.run!);
  const { printed, rest } = aroundPrinted(own.slice(1));
  const isLess = text.startsWith(textOf(printed));
  return rest.length === 0 && printed.every(({ name }) => name === 'stdout') && isLess;
}

/** Returns the output that shows a run. */
export function outputOf({ snapshot, html, plain }: RunRecord, open: boolean): IOutput {
  const shown = { version: 1, open, snapshot: toSaved(snapshot) };
  return {
    output_type: 'display_data',
    metadata: {},
    data: { [MIME]: shown as any, 'text/html': html, 'text/plain': plain }
  };
}

/** Returns what a cell has of what a run has printed, and the text of a record that lacks the beginning:
    up to where the text begins in it, or all of it and a line that says what `missing` says. */
function joined(there: string, text: string, missing: string): string {
  const lines = there.split('\n').slice(0, -1); // the last one may not be complete
  const [first, ...rows] = text.split('\n');
  const begins = (line: string, at: number): boolean =>
    line.endsWith(lastWritten(first!)) &&
    (first !== '' || at + 1 < lines.length) &&
    lines.slice(at + 1).every((next, row) => row < rows.length - 1 && isShown(next, rows[row]!));
  const at = rows.length > 0 ? lines.findIndex(begins) : -1;
  if (at >= 0) {
    return [...lines.slice(0, at + 1), ...rows].join('\n');
  }
  const end = there === '' || there.endsWith('\n') ? '' : '\n';
  return `${there}${end}${missing}\n${text}`;
}

/** Whether a cell has a line for what was printed, which it keeps as it is after carriage returns. */
function isShown(line: string, printed: string): boolean {
  const last = lastWritten(printed);
  return line === last || (printed.includes('\r') && line.startsWith(last));
}

/** Returns all that a run has printed, and where they are in its cell the lines that only the cell has,
    like answers to questions and what a debugger has said. */
function completed(printed: IOutput[], text: string): string {
  const rows = text.split('\n');
  const whole = new Set(rows);
  // What has overwritten something longer has left the end of it in the cell.
  const redrawn = rows.filter((row) => row.includes('\r')).flatMap((row) => row.split('\r').filter(Boolean));
  const pieces = printed.map((output) => textOf([output]).split('\n'));
  const unfinished = new Set(pieces.map((piece) => piece.at(-1)!));
  // What a rank of several has printed and the record lacks, it has overwritten or cleared.
  const isKnown = (line: string): boolean =>
    whole.has(line) ||
    (unfinished.has(line) && text.includes(line)) ||
    LABELLED.test(line) ||
    redrawn.some((part) => line.startsWith(part));
  const lines = pieces.flat().filter(Boolean);
  const own = new Set(lines.filter((line) => !isKnown(line)));
  const all: string[] = [];
  let at = 0;
  for (const line of own.size > 0 ? lines : []) {
    if (own.has(line)) {
      all.push(line);
    } else {
      let next = at;
      while (next < rows.length && !isShown(line, rows[next]!)) {
        next++;
      }
      if (next < rows.length) {
        all.push(...rows.slice(at, next + 1));
        at = next + 1;
      }
    }
  }
  return [...all, ...rows.slice(at)].join('\n');
}

/** Replaces a cell's record of a run, in its place; with `missing`, which says in a line that output may
    be missing there, also the printed output below it. */
export function replaceOutputs({ model }: CodeCell, record: RunRecord, missing: string | null): void {
  const { above, own, after } = partsOf(model.outputs.toJSON(), record.snapshot.run!);
  const below = own.filter((output) => runOf(output) === null);
  const data = own[0]?.data as { [MIME]?: RunOutput } | undefined;
  const shown = outputOf(record, data?.[MIME]?.open ?? true);
  if (missing === null || (record.text === '' && !record.cut)) {
    model.outputs.fromJSON([...above, shown, ...below, ...after]);
    return;
  }
  const { before, rest, ...around } = aroundPrinted(below);
  const printed = withoutLine(around.printed, missing);
  const text = record.cut ? joined(textOf(printed), record.text, missing) : completed(printed, record.text);
  const restored = text ? [{ output_type: 'stream' as const, name: 'stdout', text }] : [];
  model.outputs.fromJSON([...above, shown, ...before, ...restored, ...rest, ...after]);
}

/** Adds a line below what a run has printed, unless it is there. */
export function addLine({ model: { outputs } }: CodeCell, run: Run, line: string): void {
  const { above, own, after } = partsOf(outputs.toJSON(), run);
  const there = textOf(aroundPrinted(own).printed);
  if (own.length > 0 && !there.includes(line)) {
    const text = there === '' || there.endsWith('\n') ? `${line}\n` : `\n${line}\n`;
    const added = { output_type: 'stream' as const, name: 'stdout', text };
    if (after.length === 0) {
      outputs.add(added);
    } else {
      outputs.fromJSON([...above, ...own, added, ...after]);
    }
  }
}

/** Returns printed outputs without the line that `addLine` has added. */
function withoutLine(printed: IOutput[], line: string): IOutput[] {
  const text = textOf(printed.slice(-1));
  return text.endsWith(`${line}\n`)
    ? [...printed.slice(0, -1), { ...printed.at(-1)!, text: text.slice(0, -line.length - 1) }]
    : printed;
}

/** Brings the printed output of a restored run up to date, as if its kernel had sent what is new: what
    the user has scrolled to or selected stays. `former` is the record's text that the cell has. */
export function extendOutputs(cell: CodeCell, record: RunRecord, former: string, missing: string): void {
  const { outputs } = cell.model;
  const { own, after } = partsOf(outputs.toJSON(), record.snapshot.run!);
  const last = own.at(-1);
  const isAtEnd = after.length === 0 && last?.output_type === 'stream' && last.name === 'stdout';
  if (isAtEnd && record.text.startsWith(former)) {
    outputs.add({ output_type: 'stream', name: 'stdout', text: record.text.slice(former.length) });
  } else {
    replaceOutputs(cell, record, missing);
  }
}
