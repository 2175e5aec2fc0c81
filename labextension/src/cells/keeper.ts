/* Keeps strips true when the kernel does not tell of their runs: after a reload of the page, and when
   the kernel is gone. The server knows what the kernel has written, and what the nodes say. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Entry, Record as RunRecord } from '../api.ts';
import type { RequestError } from '../lab/client.ts';
import type { IClusters } from '../lab/clusters.ts';
import { isOver } from '../run.ts';
import type { Run } from '../snapshot.ts';
import { plain } from '../text.ts';
import { endBackground, extendOutputs, hasBeginning, hasRun, replaceOutputs, type Cells } from './cells.ts';
import type { Feed } from './feed.ts';
import type { RunStrip } from './strip.ts';

/** Milliseconds to wait for a kernel that does not report a run. */
const PATIENCE = 2500;

/** Milliseconds between two questions to the server, while some strip needs them. */
const INTERVAL = 1000;

/** Milliseconds after which the text of a restored run that goes on is asked for again. */
const LATER = 3000;

/** The record's text that a cell has; when it was asked for, by the page's clock, which is infinite if
    it is not to be asked for again; and whether later text does not come into the cell by itself. */
interface Restored {
  text: string;
  asked: number;
  isBehind: boolean;
}

export class Keeper {
  readonly #clusters: IClusters;
  readonly #feed: Feed;
  readonly #cells: Cells;
  readonly #trans: TranslationBundle;
  readonly #strips = new Set<RunStrip>();
  /** Runs whose messages come to this page and go into their cells, with the sessions that have
      asked for them. */
  readonly #here = new Map<string, ISessionContext>();
  /** Runs whose text was restored, so that later text is wanted as well. */
  readonly #restored = new Map<string, Restored>();
  readonly #asked = new Set<string>();
  /** Runs whose end is being asked for. */
  readonly #saving = new Set<string>();
  /** Runs that no kernel knows. */
  readonly #unknown = new Set<string>();
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(clusters: IClusters, feed: Feed, cells: Cells, trans: TranslationBundle) {
    this.#clusters = clusters;
    this.#feed = feed;
    this.#cells = cells;
    this.#trans = trans;
    clusters.changed.connect(() => this.#compare());
    feed.changed.connect((_, run) => this.#keepEnd(run));
  }

  add(strip: RunStrip): void {
    this.#strips.add(strip);
    this.#timer ??= setInterval(() => this.#look(), INTERVAL);
    if (strip.run) {
      this.#keepEnd(strip.run); // its kernel may have told of it before its cell was shown
    }
  }

  remove(strip: RunStrip): void {
    this.#strips.delete(strip);
    if (this.#strips.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
    const cell = this.#cells.cellOf(strip.node);
    if (cell) {
      // What takes it away may put it back itself.
      queueMicrotask(() => this.#putBack(strip, cell));
    }
  }

  /** Asks the server what a notebook has missed that was just opened, or whose kernel tells of a run that
      goes into no cell: while the sidebar is closed, it would only be asked some seconds later. */
  async catchUp(panel: NotebookPanel): Promise<void> {
    await this.#clusters.refresh();
    const kernel = panel.sessionContext.session?.kernel?.id;
    for (const entry of this.#clusters.entries ?? []) {
      if (kernel && entry.kernels.some(({ id }) => id === kernel)) {
        await logged(this.#showMissed(panel, kernel, entry));
      }
    }
  }

  /** Notes that the messages of a run come to this page. */
  comesHere(run: string, asker: ISessionContext): void {
    this.#here.set(run, asker);
  }

  /** Notes that a notebook was closed, or its kernel has ended: what still comes of its runs goes into
      no cell, even if it is opened again. */
  ended({ sessionContext }: NotebookPanel): void {
    for (const [run, asker] of this.#here) {
      if (asker === sessionContext) {
        this.#here.delete(run);
      }
    }
  }

  /** Whether the kernel's messages are what the cells have to show of a run. After a reload it is the
      server's record, which also has the text; where the server cannot tell, there is nothing else. */
  takesMessages(run: string): boolean {
    return this.#here.has(run) || this.#clusters.trouble !== null;
  }

  /** Whether text of a strip's run did not reach this page, and a kernel may have it. */
  isIncomplete(strip: RunStrip): boolean {
    const { run, snapshot } = strip;
    if (!run || !snapshot?.run || this.#here.has(run) || this.#unknown.has(run)) {
      return false;
    }
    if (this.#restored.get(run)?.isBehind === false || this.#feed.get(run)?.isLost || !this.hasKernel(strip)) {
      return false;
    }
    return this.#asked.has(run) && !snapshot.run.background && snapshot.run.shown.length > 0;
  }

  /** Whether a kernel that knows the run exists, according to the server. */
  hasKernel(strip: RunStrip): boolean {
    const entry = this.#entryOf(strip);
    return entry === undefined || entry.kernels.length > 0;
  }

  /** Puts the output of a run into the cell of its strip. */
  async restore(strip: RunStrip): Promise<void> {
    const { run, snapshot } = strip;
    const cell = this.#cells.cellOf(strip.node);
    if (run && snapshot && cell) {
      const former = this.#restored.get(run);
      this.#restored.set(run, { text: '', asked: Infinity, isBehind: false });
      try {
        const record = await this.#clusters.client.record(snapshot.cluster.id, run);
        replaceOutputs(cell, record, this.#missingIn(record));
        this.#noteRestored(run, record);
      } catch (trouble) {
        this.#restored.delete(run);
        former && this.#restored.set(run, former);
        throw trouble;
      }
    }
  }

  /** Puts the strip of a run that goes on back into its cell: the user has cleared the cell's outputs,
      and the kernel only tells what has changed in them. */
  #putBack({ run, snapshot, output }: RunStrip, cell: CodeCell): void {
    const goesOn = run && snapshot && !isOver(snapshot) && this.#here.has(run) && !snapshot.run!.background;
    // A cell that begins anew is cleared, too.
    if (goesOn && output && !cell.isDisposed && cell.model.executionState !== 'running' && !hasRun(cell, run)) {
      cell.model.outputs.add(output);
    }
  }

  /** Asks the server while a strip shows a run of which the kernel does not tell this page all. */
  #look(): void {
    if ([...this.#strips].some((strip) => this.#isSilent(strip))) {
      void this.#clusters.refresh();
    }
    for (const strip of this.#strips) {
      const restored = this.#restored.get(strip.run ?? '');
      const isDue = restored && performance.now() - restored.asked >= LATER;
      if (isDue && this.#goesOn(strip) && !this.#here.has(strip.run!) && this.hasKernel(strip)) {
        void this.#extend(strip, restored);
      }
    }
  }

  #isSilent(strip: RunStrip): boolean {
    const known = this.#feed.get(strip.run ?? '');
    return this.#goesOn(strip) && performance.now() - (known?.heard ?? 0) > PATIENCE && !known?.isLost;
  }

  #goesOn({ run, snapshot, isVisible }: RunStrip): boolean {
    return Boolean(run && snapshot && !isOver(snapshot) && isVisible);
  }

  #noteRestored(run: string, { text }: RunRecord): void {
    this.#restored.set(run, { text, asked: performance.now(), isBehind: false });
  }

  /** Adds what a run has printed since it was restored. */
  async #extend(strip: RunStrip, restored: Restored): Promise<void> {
    const run = strip.run!;
    const { isBehind } = restored;
    restored.asked = Infinity;
    try {
      const record = await this.#clusters.client.record(strip.snapshot!.cluster.id, run);
      const cell = this.#cells.cellOf(strip.node);
      // Of one that prints so much, the user asks for more: a page has no room for all of it.
      restored.isBehind = record.cut;
      restored.asked = record.cut ? Infinity : performance.now();
      const isNews = !record.cut && record.text !== restored.text;
      // Its end is saved with all of its text, by `#save`.
      if (isNews && cell && hasRun(cell, run) && !isOver(record.snapshot) && !isOver(strip.snapshot!)) {
        extendOutputs(cell, record, restored.text, this.#missingIn(record));
        restored.text = record.text;
      }
    } catch {
      restored.isBehind = true;
      restored.asked = performance.now();
    }
    if (restored.isBehind !== isBehind) {
      strip.refresh();
    }
  }

  /** Compares what strips show with the server's answer. */
  #compare(): void {
    for (const strip of this.#strips) {
      if (this.#isSilent(strip)) {
        this.#compareOne(strip, this.#entryOf(strip));
      }
    }
    for (const entry of this.#clusters.entries ?? []) {
      this.#showWhereMissing(entry);
    }
  }

  #compareOne(strip: RunStrip, entry: Entry | undefined): void {
    const run = strip.run!;
    const { trouble } = this.#clusters;
    if (!entry && trouble) {
      // Its cluster may be one of those that the answer lacks, so the run may go on.
      this.#feed.explain(run, plain(trouble), false);
    } else if (!entry) {
      this.#feed.explain(run, this.#trans.__('Its cluster has ended.'), true);
    } else if (entry.kernels.length === 0) {
      this.#explainKernelGone(run, entry);
    } else if (entry.snapshot?.run?.id === run) {
      const isNew = !this.#asked.has(run);
      this.#asked.add(run);
      this.#unknown.delete(run);
      this.#feed.take(entry.snapshot, 'server');
      if (isNew) {
        strip.refresh();
      }
    } else {
      this.#asked.add(run);
      void this.#save(strip);
    }
  }

  /** Says what is known of a run whose kernel is gone. Nodes elsewhere answer only after some
      seconds: until then, the run may go on. */
  #explainKernelGone(run: string, { state, name }: Entry): void {
    const attach = `\`%sky attach ${name}\``;
    if (state === 'unknown' || state === 'starting') {
      const note = this.#trans.__('The kernel has ended; whether the run goes on is not known yet.');
      this.#feed.explain(run, note, false);
    } else if (state === 'running') {
      const note = this.#trans.__(
        'The kernel was restarted, and the run goes on: %1 shows it in a new cell.',
        attach
      );
      this.#feed.explain(run, note, false);
    } else {
      const note =
        state === 'ready'
          ? this.#trans.__(
              'The kernel ended before this run did: %1 shows in a new cell how the run ended.',
              attach
            )
          : this.#trans.__('The kernel ended before this run did: how the run ended is not known.');
      this.#feed.explain(run, note, true);
    }
  }

  /** Says what is known of a run that no kernel knows: one that was restarted may have been connected
      to its cluster again. */
  #explainUnknown(run: string, entry: Entry | undefined): void {
    if (entry?.state === 'running') {
      const note = this.#trans.__(
        'No kernel knows this run, which may go on: %1 shows what runs.',
        `\`%sky attach ${entry.name}\``
      );
      this.#feed.explain(run, note, false);
    } else {
      this.#feed.explain(run, this.#trans.__('How this run ended is no longer known.'), true);
    }
  }

  /** Saves the end of a run if the kernel's own message does not reach the notebook. */
  #keepEnd(run: string): void {
    const known = this.#feed.get(run);
    if (known && isOver(known.snapshot) && !this.#here.has(run)) {
      for (const strip of this.#strips) {
        if (strip.run === run && !strip.hasEnd) {
          this.#asked.add(run);
          void this.#save(strip);
        }
      }
    }
  }

  /** Puts the end of a run, which the page has missed, into the output of its cell. */
  async #save(strip: RunStrip): Promise<void> {
    const { run, snapshot } = strip;
    const cell = this.#cells.cellOf(strip.node);
    if (!run || !snapshot || !cell || this.#saving.has(run)) {
      return;
    }
    this.#saving.add(run);
    try {
      const record = await this.#clusters.client.record(snapshot.cluster.id, run);
      if (isOver(record.snapshot)) {
        const { background, shown } = record.snapshot.run!;
        if (!background && (this.#restored.has(run) || hasBeginning(cell, record))) {
          this.#noteRestored(run, record);
        }
        replaceOutputs(cell, record, this.#restored.has(run) ? this.#missingIn(record) : null);
        if (background && shown.length < 2) {
          endBackground(cell, run, record.text);
        }
      }
    } catch (error) {
      const { status, message } = error as RequestError;
      if (status === 404) {
        this.#unknown.add(run);
        this.#explainUnknown(run, this.#entryOf(strip));
      } else {
        this.#feed.explain(run, plain(message), false); // it is asked again
      }
    } finally {
      this.#saving.delete(run);
    }
  }

  /** Shows a run in its cell if the page was reloaded before the notebook was saved. */
  #showWhereMissing({ snapshot, snapshot_kernel: kernel }: Entry): void {
    const run = snapshot?.run;
    if (!run?.cell || !kernel || isOver(snapshot!) || this.#here.has(run.id) || run.background) {
      return;
    }
    // Cells of a copy of the notebook, with a kernel of its own, have the same ids.
    for (const { content } of this.#cells.notebooksOf(kernel)) {
      const cell = content.widgets.find(({ model }) => model.id === run.cell) as CodeCell;
      // A cell that this page has begun gets the kernel's own message, however late.
      const isMissed = cell?.model.type === 'code' && cell.model.executionState !== 'running';
      if (isMissed && !hasRun(cell, run.id)) {
        this.#asked.add(run.id); // what it has printed so far is missing
        replaceOutputs(cell, { snapshot: snapshot!, html: '', plain: '', text: '', cut: false }, null);
      }
    }
  }

  /** Shows the runs of a cluster that have ended while no page was there. */
  async #showMissed(panel: NotebookPanel, kernel: string, entry: Entry): Promise<void> {
    const { id, snapshot, snapshot_kernel: reporter } = entry;
    const { ended } = await this.#clusters.client.runs(id, kernel);
    const present = reporter === kernel ? snapshot?.run : undefined;
    // Of each cell the last one, unless another goes on in it.
    for (const run of new Map(ended.map((each) => [each.cell, each])).values()) {
      if (run.id === present?.id || run.cell !== present?.cell) {
        await logged(this.#restoreEnded(panel, id, run));
      }
    }
  }

  /** Shows in its cell a run that has ended since the notebook was saved, while no page was there. */
  async #restoreEnded({ content, context }: NotebookPanel, cluster: string, run: Run): Promise<void> {
    if (!run.cell || this.#here.has(run.id) || run.background) {
      return;
    }
    const saved = Date.parse(context.contentsModel?.last_modified ?? '') / 1000;
    const cell = content.widgets.find(({ model }) => model.id === run.cell) as CodeCell | undefined;
    if (cell?.model.type === 'code' && !hasRun(cell, run.id) && saved < run.started + run.seconds) {
      const record = await this.#clusters.client.record(cluster, run.id);
      this.#noteRestored(run.id, record);
      replaceOutputs(cell, record, this.#missingIn(record));
    }
  }

  /** Returns a line for where output may be missing that neither cell nor record has. */
  #missingIn({ snapshot }: RunRecord): string {
    const { shown } = snapshot.run!;
    const rank = shown.length > 1 ? 'RANK' : shown[0];
    return this.#trans.__(
      '[… some output may be missing here: %1 has all of it …]',
      `\`%sky logs ${rank} --save FILE\``
    );
  }

  #entryOf({ snapshot }: RunStrip): Entry | undefined {
    return snapshot ? this.#clusters.find(snapshot.cluster.id) : undefined;
  }
}

/** Waits for one of several things, of which one that fails must not keep back the others. */
function logged(work: Promise<void>): Promise<void> {
  return work.catch((trouble) => console.error(trouble));
}
