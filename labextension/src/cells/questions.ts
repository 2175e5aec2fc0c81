/* Takes away what a run has asked and nobody answers any more: the box would stay in the cell, and
   JupyterLab would run no other cell before an answer. */

import type { CodeCell } from '@jupyterlab/cells';
import { NotebookActions, type INotebookTracker } from '@jupyterlab/notebook';
import { runOf } from './cells.ts';

/** The class of a question and its box, as JupyterLab has it. */
const QUESTION = 'jp-OutputArea-stdin-item';

/** Removes the prompts of our cells when the cells have ended. */
export function takeBackQuestions(tracker: INotebookTracker): void {
  NotebookActions.executed.connect((_, { notebook, cell }) => {
    if (cell.model.type !== 'code') {
      return;
    }
    const { outputArea, model } = cell as CodeCell;
    const left = outputArea.widgets.filter(
      (widget) => widget.hasClass(QUESTION) && !widget.hasClass('jp-OutputArea-stdin-hiding')
    );
    if (left.length > 0 && model.outputs.toJSON().some((output) => runOf(output) !== null)) {
      left.forEach((widget) => widget.dispose());
      const panel = tracker.find(({ content }) => content === notebook);
      panel?.sessionContext.session?.kernel?.removeInputGuard?.();
    }
  });
}
