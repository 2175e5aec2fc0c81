/* The strip of a run as an output of a cell: JupyterLab makes one for each output of our type. */

import type { IOutput } from '@jupyterlab/nbformat';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { PartialJSONObject } from '@lumino/coreutils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import type { Action, Ask } from '../action.ts';
import { marksOf, restore, type Marks } from '../moving.ts';
import { isOver } from '../run.ts';
import type { Snapshot } from '../snapshot.ts';
import { Usage } from '../usage.ts';
import { release, render, selectedIn, takeOver } from '../view.ts';
import type { Feed } from './feed.ts';
import { fromSaved, MIME, type RunOutput } from './record.ts';

/** What a strip needs from its page. */
export interface Page {
  readonly hasSidebar: boolean;
  /** Returns the address of a path of Jupyter's server. */
  address(path: string): string;
  act(action: Action, strip: RunStrip): void;
  /** Whether text of a run is missing in the cell of a strip. */
  isIncomplete(strip: RunStrip): boolean;
  /** Follows the rank that is selected in a strip, if somebody has to. */
  followSelected(strip: RunStrip): void;
  /** Returns a function that answers questions about a strip's cluster, or null. */
  askOf(strip: RunStrip): Ask | null;
  attached(strip: RunStrip): void;
  detached(strip: RunStrip): void;
}

/** The strips that the user has opened or closed, by run: pages recreate strips. */
const opened = new Map<string, boolean>();

/** The usage histories shown to the user, by run; those of the latest are kept. */
const usages = new Map<string, Usage>();
const MOST_USAGES = 8;

function usageOf(run: string): Usage {
  const usage = usages.get(run) ?? new Usage();
  usages.delete(run);
  usages.set(run, usage);
  for (const old of [...usages.keys()].slice(0, -MOST_USAGES)) {
    usages.delete(old);
  }
  return usage;
}

/** Strips that were just taken away, as by a cell that clears its output: what shows their runs next
    takes over their views. */
const left: { run: string | null; node: HTMLElement; marks: Marks | null }[] = [];

export class RunStrip extends Widget implements IRenderMime.IRenderer {
  readonly #feed: Feed;
  readonly #page: Page;
  readonly #trans: TranslationBundle;
  #output: { open: boolean; snapshot: Snapshot } | null = null;
  #data: PartialJSONObject = {};
  /** Of when it was taken out of the page, and of the strip whose view it has taken over. */
  #marks: Marks | null = null;
  #taken: Marks | null = null;
  #isIncomplete = false;

  constructor(feed: Feed, page: Page, trans: TranslationBundle) {
    super();
    this.addClass('jsky-cell-strip');
    this.#feed = feed;
    this.#page = page;
    this.#trans = trans;
    feed.changed.connect(this.#changed, this);
  }

  /** The run that it shows. */
  get run(): string | null {
    return this.#output?.snapshot.run?.id ?? null;
  }

  /** The output of the cell that it is. */
  get output(): IOutput | null {
    return this.#output && { output_type: 'display_data', metadata: {}, data: this.#data };
  }

  /** Whether the notebook has the end of the run. */
  get hasEnd(): boolean {
    return this.#output !== null && isOver(this.#output.snapshot);
  }

  /** The newest known state of the run. */
  get snapshot(): Snapshot | null {
    return (this.run && this.#feed.get(this.run)?.snapshot) || (this.#output?.snapshot ?? null);
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const output = model.data[MIME] as unknown as RunOutput | undefined;
    if (output?.version !== 1) {
      this.node.textContent = this.#trans.__('This run was saved by another version.');
      return;
    }
    this.#output = { open: output.open, snapshot: fromSaved(output.snapshot) };
    this.#data = model.data as PartialJSONObject;
    this.#takeOver();
    this.#feed.take(this.#output.snapshot, 'output');
    this.refresh();
  }

  /** The rank that the user has selected, perhaps in the strip whose view it has taken over. */
  get selected(): number | null {
    return selectedIn(this.node);
  }

  /** Shows the present state. */
  refresh(): void {
    const snapshot = this.snapshot;
    if (this.isDisposed || !snapshot) {
      return;
    }
    const known = this.run ? this.#feed.get(this.run) : undefined;
    const isIncomplete = this.#page.isIncomplete(this);
    const place = {
      kind: 'cell' as const,
      open: opened.get(this.run ?? '') ?? this.#output?.open ?? false,
      note: known?.note ?? '',
      isLost: known?.isLost ?? false,
      isIncomplete,
      hasSidebar: this.#page.hasSidebar,
      address: (path: string) => this.#page.address(path),
      ask: this.#page.askOf(this),
      usage: usageOf(this.run ?? '')
    };
    render(this.node, snapshot, (action) => this.#act(action), this.#trans, place);
    const isNews = isIncomplete !== this.#isIncomplete;
    this.#isIncomplete = isIncomplete;
    if (isNews && this.isAttached) {
      this.#page.followSelected(this);
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.#feed.changed.disconnect(this.#changed, this);
      const mine = { run: this.run, node: this.node, marks: this.#marks };
      left.push(mine);
      setTimeout(() => {
        if (left.includes(mine)) {
          left.splice(left.indexOf(mine), 1);
          release(mine.node);
        }
      });
      super.dispose();
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.#taken) {
      restore(this.#taken);
      this.#taken = null;
    }
    this.#page.attached(this);
  }

  protected override onBeforeDetach(message: Message): void {
    this.#page.detached(this);
    this.#marks = marksOf(this.node);
    super.onBeforeDetach(message);
  }

  #takeOver(): void {
    const at = left.findIndex(({ run }) => run === this.run);
    const [before] = at < 0 ? [] : left.splice(at, 1);
    if (before) {
      takeOver(before.node, this.node, (action) => this.#act(action));
      this.#taken = before.marks;
    }
  }

  #changed(_: Feed, run: string): void {
    if (run === this.run) {
      this.refresh();
    }
  }

  #act(action: Action): void {
    if (action.kind === 'open' && this.run) {
      opened.set(this.run, action.open);
    }
    this.#page.act(action, this);
  }
}
