/* Puts runs into their cells that began or ended while no page of their notebook was there to be told,
   or that a reload of the page has left out, since the notebook was not saved. */

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Entry } from '../api.ts';
import type { IClusters } from '../lab/clusters.ts';
import { isOver } from '../run.ts';
import type { Run } from '../snapshot.ts';
import { hasRun, replaceOutputs, type Cells } from './cells.ts';
import type { Texts } from './texts.ts';

export class MissedRuns {
  readonly #clusters: IClusters;
  readonly #cells: Cells;
  readonly #texts: Texts;

  constructor(clusters: IClusters, cells: Cells, texts: Texts) {
    this.#clusters = clusters;
    this.#cells = cells;
    this.#texts = texts;
    clusters.changed.connect(() => clusters.entries?.forEach((entry) => this.#showPresent(entry)));
  }

  /** Asks the server what a notebook has missed that was just opened, or whose kernel tells of a run that
      goes into no cell: while the sidebar is closed, it would only be asked some seconds later. */
  async catchUp(panel: NotebookPanel): Promise<void> {
    await this.#clusters.refresh();
    const kernel = panel.sessionContext.session?.kernel?.id;
    for (const entry of this.#clusters.entries ?? []) {
      if (kernel && entry.kernels.some(({ id }) => id === kernel)) {
        await logged(this.#showEnded(panel, kernel, entry));
      }
    }
  }

  /** Shows in its cell the run that goes on in a cluster. */
  #showPresent({ snapshot, snapshot_kernel: kernel }: Entry): void {
    const run = snapshot?.run;
    if (!run?.cell || !kernel || isOver(snapshot!) || this.#texts.isHere(run.id) || run.background) {
      return;
    }
    // Cells of a copy of the notebook, with a kernel of its own, have the same ids.
    for (const panel of this.#cells.notebooksOf(kernel)) {
      const cell = cellWith(panel, run.cell);
      // A cell that this page has begun gets the kernel's own message, however late.
      if (cell && cell.model.executionState !== 'running' && !hasRun(cell, run.id)) {
        this.#texts.mayLack(run.id); // what it has printed so far is missing
        replaceOutputs(cell, { snapshot: snapshot!, html: '', plain: '', text: '', cut: false }, null);
      }
    }
  }

  /** Shows the runs of a cluster that have ended. */
  async #showEnded(panel: NotebookPanel, kernel: string, entry: Entry): Promise<void> {
    const { id, snapshot, snapshot_kernel: reporter } = entry;
    const { ended } = await this.#clusters.client.runs(id, kernel);
    const present = reporter === kernel ? snapshot?.run : undefined;
    // Of each cell the last one, unless another goes on in it.
    for (const run of new Map(ended.map((each) => [each.cell, each])).values()) {
      if (run.id === present?.id || run.cell !== present?.cell) {
        await logged(this.#restore(panel, id, run));
      }
    }
  }

  /** Shows in its cell a run that has ended since the notebook was saved. */
  async #restore(panel: NotebookPanel, cluster: string, run: Run): Promise<void> {
    if (!run.cell || this.#texts.isHere(run.id) || run.background) {
      return;
    }
    const saved = Date.parse(panel.context.contentsModel?.last_modified ?? '') / 1000;
    const cell = cellWith(panel, run.cell);
    if (cell && !hasRun(cell, run.id) && saved < run.started + run.seconds) {
      const record = await this.#clusters.client.record(cluster, run.id);
      this.#texts.noteRestored(run.id, record);
      replaceOutputs(cell, record, this.#texts.missingIn(record.snapshot.run!));
    }
  }
}

function cellWith({ content }: NotebookPanel, id: string): CodeCell | undefined {
  const cell = content.widgets.find(({ model }) => model.id === id);
  return cell?.model.type === 'code' ? (cell as CodeCell) : undefined;
}

/** Waits for one of several things, of which one that fails must not keep back the others. */
function logged(work: Promise<void>): Promise<void> {
  return work.catch((trouble) => console.error(trouble));
}
