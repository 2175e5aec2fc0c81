/* Keeps strips true when the kernel does not tell of their runs: after a reload of the page, and when
   the kernel is gone. The server knows what the kernel has written, and what the nodes say. */

import type { CodeCell } from '@jupyterlab/cells';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Entry } from '../api.ts';
import type { RequestError } from '../lab/client.ts';
import type { IClusters } from '../lab/clusters.ts';
import { isOver } from '../run.ts';
import { plain } from '../text.ts';
import { addLine, endBackground, hasBeginning, hasRun, replaceOutputs, type Cells } from './cells.ts';
import type { Feed } from './feed.ts';
import type { RunStrip } from './strip.ts';
import { entryOf, type Texts } from './texts.ts';

/** Milliseconds to wait for a kernel that does not report a run. */
const PATIENCE = 2500;

/** Milliseconds between two questions to the server, while some strip needs them. */
const INTERVAL = 1000;

export class Keeper {
  readonly #clusters: IClusters;
  readonly #feed: Feed;
  readonly #cells: Cells;
  readonly #texts: Texts;
  readonly #trans: TranslationBundle;
  readonly #strips = new Set<RunStrip>();
  /** Runs whose end is being asked for. */
  readonly #saving = new Set<string>();
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(
    clusters: IClusters,
    feed: Feed,
    cells: Cells,
    texts: Texts,
    trans: TranslationBundle
  ) {
    this.#clusters = clusters;
    this.#feed = feed;
    this.#cells = cells;
    this.#texts = texts;
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

  /** Puts the strip of a run that goes on back into its cell: the user has cleared the cell's outputs,
      and the kernel only tells what has changed in them. */
  #putBack({ run, snapshot, output }: RunStrip, cell: CodeCell): void {
    const goesOn = run && snapshot && !isOver(snapshot) && this.#texts.isHere(run) && !snapshot.run!.background;
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
      if (this.#goesOn(strip)) {
        void this.#texts.extend(strip);
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

  /** Compares what strips show with the server's answer. */
  #compare(): void {
    for (const strip of this.#strips) {
      if (this.#isSilent(strip)) {
        this.#compareOne(strip, entryOf(this.#clusters, strip));
      }
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
      this.#explainKernelGone(strip, entry);
    } else if (entry.snapshot?.run?.id === run) {
      const isNew = this.#texts.mayLack(run);
      this.#texts.setKnown(run, true);
      this.#feed.take(entry.snapshot, 'server');
      if (isNew) {
        strip.refresh();
      }
    } else {
      this.#texts.mayLack(run);
      void this.#save(strip);
    }
  }

  /** Says what is known of a run whose kernel is gone. Nodes elsewhere answer only after some
      seconds: until then, the run may go on. */
  #explainKernelGone(strip: RunStrip, { state, name }: Entry): void {
    const run = strip.run!;
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
      this.#markGap(strip);
    } else {
      const note =
        state === 'ready'
          ? this.#trans.__(
              'The kernel ended before this run did: %1 shows in a new cell how the run ended.',
              attach
            )
          : this.#trans.__('The kernel ended before this run did: how the run ended is not known.');
      this.#feed.explain(run, note, true);
      if (state === 'ready') {
        this.#markGap(strip);
      }
    }
  }

  /** Says below a run's output that more of it comes into no cell, for who reads the notebook later. */
  #markGap({ node, snapshot }: RunStrip): void {
    const cell = this.#cells.cellOf(node);
    const run = snapshot!.run!;
    if (cell && !run.background && run.shown.length > 0) {
      addLine(cell, run, this.#texts.missingIn(run));
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
    if (known && isOver(known.snapshot) && !this.#texts.isHere(run)) {
      for (const strip of this.#strips) {
        if (strip.run === run && !strip.hasEnd) {
          this.#texts.mayLack(run);
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
        if (!background && (this.#texts.isRestored(run) || hasBeginning(cell, record))) {
          this.#texts.noteRestored(run, record);
        }
        const missing = this.#texts.isRestored(run) ? this.#texts.missingIn(record.snapshot.run!) : null;
        replaceOutputs(cell, record, missing);
        if (background && shown.length < 2) {
          endBackground(cell, run, record.text);
        }
      }
    } catch (error) {
      const { status, message } = error as RequestError;
      if (status === 404) {
        this.#texts.setKnown(run, false);
        this.#explainUnknown(run, entryOf(this.#clusters, strip));
      } else {
        this.#feed.explain(run, plain(message), false); // it is asked again
      }
    } finally {
      this.#saving.delete(run);
    }
  }
}
