/* Questions before something is lost or costs more, unless the user's settings turn them off. */

import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Entry } from '../api.ts';
import { isOver } from '../run.ts';
import { plain } from '../text.ts';
import { money } from '../words.ts';
import type { Settings } from './settings.ts';

/** A number of nodes, and what the user agreed that they cost an hour, if that was asked. */
interface Size {
  nodes: number;
  price: number | null;
}

export class Confirm {
  readonly #settings: Settings;
  readonly #trans: TranslationBundle;

  constructor(settings: Settings, trans: TranslationBundle) {
    this.#settings = settings;
    this.#trans = trans;
  }

  restart(entry: Entry): Promise<boolean> {
    const title = this.#trans.__('Restart the ranks of %1?', plain(entry.name));
    return this.#confirmLoss(title, this.#lossOf(entry), this.#trans.__('Restart'));
  }

  down(entry: Entry): Promise<boolean> {
    const title = this.#trans.__('End the cluster %1?', plain(entry.name));
    return this.#confirmLoss(title, this.#lossOf(entry), this.#trans.__('End'));
  }

  /** Asks whether to stop machines; `foreseen` says what that loses and costs. */
  stop(entry: Entry, foreseen: string): Promise<boolean> {
    const title = this.#trans.__('Stop the machines of %1?', plain(entry.name));
    return this.#confirmLoss(title, plain(foreseen), this.#trans.__('Stop machines'));
  }

  /** Asks whether to start stopped machines, at their full price. */
  async start({ name, running_price: price }: Entry): Promise<boolean> {
    if (price !== null && price <= this.#settings.values.confirmAbove) {
      return true;
    }
    const title = this.#trans.__('Start the machines of %1?', plain(name));
    const body =
      price === null
        ? this.#trans.__('What they cost is not known here.')
        : this.#trans.__('They cost %1 an hour, as before.', money(price));
    return this.#ask(title, body, Dialog.okButton({ label: this.#trans.__('Start') }));
  }

  /** Asks for the number of nodes; returns null if it stays as it is. */
  async scale(entry: Entry): Promise<Size | null> {
    const { name, nodes, price } = entry;
    const { value } = await InputDialog.getNumber({
      title: this.#trans.__('Number of nodes of %1', plain(name)),
      value: nodes ?? 1,
      okLabel: this.#trans.__('Change')
    });
    if (value === null || value === nodes) {
      return null;
    }
    if (!Number.isInteger(value) || value < 1) {
      throw new Error(this.#trans.__('Nodes must be a whole number of 1 or more.'));
    }
    if (nodes !== null && value < nodes) {
      const title = this.#trans.__('Remove nodes from %1?', plain(name));
      const body = this.#trans.__('Variables on the ranks of those nodes are lost.');
      const agrees = await this.#confirmLoss(title, body, this.#trans.__('Remove'));
      return agrees ? { nodes: value, price: null } : null;
    }
    const dearer = nodes && price !== null ? (price / nodes) * value : 0;
    if (dearer > this.#settings.values.confirmAbove) {
      const title = this.#trans.__('Add nodes to %1?', plain(name));
      const body = this.#trans.__('It will cost %1 an hour.', money(dearer));
      const agrees = await this.#ask(title, body, Dialog.okButton());
      return agrees ? { nodes: value, price: dearer } : null;
    }
    return { nodes: value, price: null };
  }

  #lossOf({ state, snapshot }: Entry): string {
    if (state !== 'running') {
      return this.#trans.__('All variables on its ranks are lost.');
    }
    const title = snapshot && !isOver(snapshot) && snapshot.run?.title;
    return title
      ? this.#trans.__('The run "%1" ends, and all variables on its ranks are lost.', plain(title))
      : this.#trans.__('The current run ends, and all variables on its ranks are lost.');
  }

  async #confirmLoss(title: string, body: string, label: string): Promise<boolean> {
    return (
      !this.#settings.values.confirmLoss ||
      this.#ask(title, body, Dialog.warnButton({ label }))
    );
  }

  async #ask(title: string, body: string, yes: Dialog.IButton): Promise<boolean> {
    const label = this.#trans.__('Cancel');
    const buttons = [Dialog.cancelButton({ label }), yes];
    return (await showDialog({ title, body, buttons })).button.accept;
  }
}
