/* What runs have printed, as far as their cells have it: where the kernel's messages go into a cell, all
   of it; where they do not, what the server's record had when it was asked. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Entry, Record as RunRecord } from '../api.ts';
import type { IClusters } from '../lab/clusters.ts';
import { isOver } from '../run.ts';
import type { Run } from '../snapshot.ts';
import { extendOutputs, hasRun, replaceOutputs, type Cells } from './cells.ts';
import type { Feed } from './feed.ts';
import type { RunStrip } from './strip.ts';

/** Milliseconds after which the text of a restored run that goes on is asked for again. */
const LATER = 3000;

/** The record's text that a cell has; when it was asked for, by the page's clock, which is infinite if
    it is not to be asked for again; and whether later text does not come into the cell by itself. */
interface Restored {
  text: string;
  asked: number;
  isBehind: boolean;
}

export class Texts {
  readonly #clusters: IClusters;
  readonly #feed: Feed;
  readonly #cells: Cells;
  readonly #trans: TranslationBundle;
  /** Runs whose messages come to this page and go into their cells, with the sessions that have
      asked for them. */
  readonly #here = new Map<string, ISessionContext>();
  /** Runs whose text was restored, so that later text is wanted as well. */
  readonly #restored = new Map<string, Restored>();
  readonly #lacking = new Set<string>();
  /** Runs that no kernel knows. */
  readonly #unknown = new Set<string>();

  constructor(clusters: IClusters, feed: Feed, cells: Cells, trans: TranslationBundle) {
    this.#clusters = clusters;
    this.#feed = feed;
    this.#cells = cells;
    this.#trans = trans;
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

  /** Whether a run's messages come to this page and go into its cell. */
  isHere(run: string): boolean {
    return this.#here.has(run);
  }

  /** Notes that the cell of a run may lack some of its text; returns whether that is news. */
  mayLack(run: string): boolean {
    const isNew = !this.#lacking.has(run);
    this.#lacking.add(run);
    return isNew;
  }

  /** Notes whether any kernel knows a run. */
  setKnown(run: string, isKnown: boolean): void {
    if (isKnown) {
      this.#unknown.delete(run);
    } else {
      this.#unknown.add(run);
    }
  }

  /** Whether the text of a run was restored. */
  isRestored(run: string): boolean {
    return this.#restored.has(run);
  }

  /** Notes that a cell has the text of a record. */
  noteRestored(run: string, { text }: RunRecord): void {
    this.#restored.set(run, { text, asked: performance.now(), isBehind: false });
  }

  /** Whether text of a strip's run did not reach this page, and a kernel may have it. */
  isIncomplete(strip: RunStrip): boolean {
    const { run, snapshot } = strip;
    if (!run || !snapshot?.run || this.#here.has(run) || this.#unknown.has(run)) {
      return false;
    }
    const isWhole = this.#restored.get(run)?.isBehind === false;
    if (isWhole || this.#feed.get(run)?.isLost || !hasKernel(this.#clusters, strip)) {
      return false;
    }
    return this.#lacking.has(run) && !snapshot.run.background && snapshot.run.shown.length > 0;
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
        replaceOutputs(cell, record, this.missingIn(record.snapshot.run!));
        this.noteRestored(run, record);
      } catch (trouble) {
        this.#restored.delete(run);
        former && this.#restored.set(run, former);
        throw trouble;
      }
    }
  }

  /** Adds to a cell what its run, which goes on, has printed since it was restored. */
  async extend(strip: RunStrip): Promise<void> {
    const run = strip.run!;
    const restored = this.#restored.get(run);
    const isDue = restored && performance.now() - restored.asked >= LATER;
    if (!isDue || this.#here.has(run) || !hasKernel(this.#clusters, strip)) {
      return;
    }
    const { isBehind } = restored;
    restored.asked = Infinity;
    try {
      const record = await this.#clusters.client.record(strip.snapshot!.cluster.id, run);
      const cell = this.#cells.cellOf(strip.node);
      // Of one that prints so much, the user asks for more: a page has no room for all of it.
      restored.isBehind = record.cut;
      restored.asked = record.cut ? Infinity : performance.now();
      const isNews = !record.cut && record.text !== restored.text;
      // Its end is saved with all of its text, by the keeper.
      if (isNews && cell && hasRun(cell, run) && !isOver(record.snapshot) && !isOver(strip.snapshot!)) {
        extendOutputs(cell, record, restored.text, this.missingIn(record.snapshot.run!));
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

  /** Returns a line for where output may be missing that neither cell nor record has. */
  missingIn({ shown }: Run): string {
    const rank = shown.length > 1 ? 'RANK' : shown[0];
    return this.#trans.__(
      '[… some output may be missing here: %1 has all of it …]',
      `\`%sky logs ${rank} --save FILE\``
    );
  }
}

/** Returns what the server says of the cluster of a strip. */
export function entryOf(clusters: IClusters, { snapshot }: RunStrip): Entry | undefined {
  return snapshot ? clusters.find(snapshot.cluster.id) : undefined;
}

/** Whether a kernel that knows the run of a strip exists, according to the server. */
export function hasKernel(clusters: IClusters, strip: RunStrip): boolean {
  const entry = entryOf(clusters, strip);
  return entry === undefined || entry.kernels.length > 0;
}
