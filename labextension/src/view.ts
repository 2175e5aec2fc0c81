/* The view of a run: `render` shows a snapshot in an element and touches only what changed. It knows
   nothing of Jupyter, and imports nothing but its parts beside it. */

import type { Action, Ask } from './action.ts';
import { Curves } from './curves.ts';
import { element, setAttribute, setShown, setText } from './dom.ts';
import { Usage } from './usage.ts';
import { keepKeys } from './keys.ts';
import { More } from './more.ts';
import { keepClicks } from './moving.ts';
import type { Address } from './pages.ts';
import { OutputPane } from './output.ts';
import { RankList } from './ranks.ts';
import { Strip } from './strip.ts';
import { isOver } from './run.ts';
import type { Output, Snapshot } from './snapshot.ts';
import { setSentence, setSentences } from './sentence.ts';
import { plain } from './text.ts';
import { english, type Translation } from './words.ts';

export type { Action, Ask, Snapshot, Translation };

/** The surroundings of a view. */
export interface Place {
  /** A cell shows its head's output itself, and the ranks only when opened. */
  kind: 'cell' | 'sidebar';
  /** Whether the ranks are shown, until the user toggles them. */
  open?: boolean;
  /** A sentence for the user, for example about a restarted kernel. */
  note?: string;
  /** Whether no more news of the run will come, although its end is not known. */
  isLost?: boolean;
  /** Whether text of the run is missing in the cell and can be restored. */
  isIncomplete?: boolean;
  /** Whether a click on the cluster's name shows it in the sidebar. */
  hasSidebar?: boolean;
  /** Returns the address of a path of Jupyter's server, if it is known. */
  address?: Address;
  /** Answers the user's questions about the cluster, if somebody can. */
  ask?: Ask | null;
  /** The known usage of the last ten minutes, and whether the user looks at it. */
  usage?: Usage;
}

const views = new WeakMap<HTMLElement, View>();

/** Shows a snapshot in `host`, which belongs to the view until `release`. */
export function render(
  host: HTMLElement,
  snapshot: Snapshot,
  act: (action: Action) => void,
  trans: Translation = english,
  place: Place = { kind: 'sidebar' }
): void {
  let view = views.get(host);
  if (!view) {
    view = new View(act, trans, place);
    views.set(host, view);
    host.replaceChildren(view.element);
  }
  view.show(snapshot, place);
}

/** Moves the view of another host into `host`, as the user has it. */
export function takeOver(from: HTMLElement, host: HTMLElement, act: (action: Action) => void): void {
  const view = views.get(from);
  if (view) {
    views.delete(from);
    views.set(host, view);
    view.act = act;
    host.replaceChildren(view.element);
  }
}

/** Returns the rank that is selected in the view of a host, or null. */
export function selectedIn(host: HTMLElement): number | null {
  return views.get(host)?.selected ?? null;
}

/** Takes the view out of `host` again. */
export function release(host: HTMLElement): void {
  views.get(host)?.release();
  views.delete(host);
  host.replaceChildren();
}

class View {
  readonly element: HTMLElement;
  act: (action: Action) => void;
  readonly #trans: Translation;
  readonly #isCell: boolean;
  readonly #strip: Strip;
  readonly #note = element('div', 'jsky-note', { role: 'status' });
  readonly #where = element('div', 'jsky-where', { role: 'status', tabindex: '0' });
  readonly #curves: Curves;
  readonly #ranks: RankList;
  readonly #output: OutputPane;
  readonly #more: More;
  readonly #body: HTMLElement;
  readonly #announcement = element('div', 'jsky-spoken', { role: 'status', 'aria-live': 'polite' });
  readonly #giveKeysBack: () => void;
  #snapshot: Snapshot | null = null;
  #ask: Ask | null = null;
  #isLost = false;
  #isIncomplete = false;
  #selected: number | null = null;
  #open: boolean;

  constructor(act: (action: Action) => void, trans: Translation, place: Place) {
    this.act = act;
    const forward = (action: Action) => this.act(action);
    this.#trans = trans;
    this.#isCell = place.kind === 'cell';
    this.#open = place.open ?? true;
    this.#strip = new Strip(trans, place.kind, forward, {
      toggle: () => this.#toggle(),
      inspect: (rank) => this.#inspect(rank)
    });
    this.#curves = new Curves(trans);
    this.#ranks = new RankList(trans, this.#isCell, (rank) => this.#choose(rank));
    this.#output = new OutputPane(trans, undefined, (place) => forward({ kind: 'go', place }));
    this.#more = new More(trans, place.usage ?? new Usage());
    const parts = [this.#ranks.element, this.#output.element, this.#more.element];
    this.#body = element('div', 'jsky-ranks-body', {}, ...parts);
    // No region: as many landmarks as a notebook has cells are none, and a run can be in two places.
    this.element = element(
      'div',
      `jsky jsky-in-${place.kind}`,
      { role: 'group' },
      this.#strip.element,
      this.#note,
      this.#where,
      this.#curves.element,
      this.#body,
      this.#announcement
    );
    this.element.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape' || !this.#isCell) {
        return;
      }
      event.stopPropagation();
      if (this.#selected !== null) {
        this.#select(null);
      } else {
        // Focus the notebook's cell, where the arrows go from cell to cell.
        this.element.parentElement?.closest<HTMLElement>('[tabindex]')?.focus();
      }
    });
    this.#giveKeysBack = keepKeys(this.element);
    keepClicks(this.element);
  }

  get selected(): number | null {
    return this.#selected;
  }

  show(snapshot: Snapshot, place: Place): void {
    if (!this.#isCell && snapshot.output.rank !== this.#snapshot?.output.rank) {
      // The rank whose output the snapshot has; the user's choice holds until that changes.
      this.#selected = snapshot.output.rank;
    }
    this.#snapshot = snapshot;
    this.#ask = place.ask ?? null;
    this.#isLost = place.isLost ?? false;
    this.#isIncomplete = place.isIncomplete ?? false;
    setAttribute(this.element, 'aria-label', this.#nameOf(snapshot));
    this.#strip.show(snapshot, this.#open, place);
    setSentence(this.#note, place.note ?? null);
    this.#showWhere(snapshot);
    this.#curves.show(snapshot.curves ?? []); // a notebook of an older version has none
    setShown(this.#body, this.#open);
    if (this.#open) {
      this.#showRanks(snapshot);
    }
    this.#showMore(snapshot);
    setText(this.#announcement, this.#strip.summary(snapshot));
  }

  /** Where the ranks are, or were when they were stopped: those of a finished run are there no more. */
  #showWhere({ run }: Snapshot): void {
    const where = run && run.state !== 'ok' ? (run.where ?? null) : null;
    setSentences(this.#where, where);
    setAttribute(this.#where, 'data-warns', run?.warns ? '' : null); // older notebooks do not say
  }

  /** What a screen reader calls it; a notebook has many. */
  #nameOf({ cluster, run }: Snapshot): string {
    const name = plain(cluster.name);
    return run?.title
      ? this.#trans.__('Run on cluster %1: %2', name, plain(run.title))
      : this.#trans.__('Run on cluster %1', name);
  }

  release(): void {
    this.#strip.release();
    this.#more.pause();
    this.#giveKeysBack();
  }

  #toggle(): void {
    this.#open = !this.#open;
    this.act({ kind: 'open', open: this.#open });
    if (!this.#open && this.#selected !== null) {
      this.#select(null);
    }
    this.#redraw();
  }

  /** Opens the ranks and shows the output of one of them. */
  #inspect(rank: number): void {
    this.#open = true;
    this.#select(rank);
    this.#redraw();
  }

  /** In a cell, a second click on a rank hides its output again. */
  #choose(rank: number): void {
    this.#select(this.#isCell && rank === this.#selected ? null : rank);
  }

  #select(rank: number | null): void {
    this.#selected = rank;
    this.act({ kind: 'select', run: this.#snapshot?.run?.id ?? null, rank });
    if (this.#snapshot) {
      this.#showRanks(this.#snapshot);
    }
  }

  #redraw(): void {
    setShown(this.#body, this.#open);
    if (this.#snapshot) {
      this.#strip.setOpen(this.#open);
      this.#showRanks(this.#snapshot);
      this.#showMore(this.#snapshot);
    }
  }

  /** Answers about a cluster do not concern a finished run: the sidebar still has them. */
  #showMore(snapshot: Snapshot): void {
    const isPresent = !this.#isCell || (snapshot.run?.state === 'running' && !this.#isLost);
    if (this.#open && isPresent) {
      this.#more.show(snapshot, this.#ask);
    } else {
      this.#more.pause();
      setShown(this.#more.element, false);
    }
  }

  #showRanks(snapshot: Snapshot): void {
    const { nodes, ranks, run } = snapshot;
    this.#ranks.show(nodes, ranks, this.#selected, run, this.#isLost);
    setShown(this.#output.element, this.#selected !== null);
    if (this.#selected !== null) {
      const rank = ranks.find((each) => each.rank === this.#selected);
      const shownByCell = this.#isCell && run?.shown.includes(this.#selected);
      const note = shownByCell ? this.#noteOfShown(snapshot) : null;
      const output = outputOf(snapshot, this.#selected);
      this.#output.show(this.#selected, output, rank?.line ?? '', isOver(snapshot), note);
    }
  }

  /** Where the output of a rank is that the cell shows; null if some is missing there, and comes here. */
  #noteOfShown(snapshot: Snapshot): string | null {
    if (!this.#isIncomplete) {
      return this.#trans.__('The cell shows what this rank prints.');
    }
    return isOver(snapshot)
      ? this.#trans.__('"Show missing output" has what this rank has printed.')
      : null;
  }
}

/** Returns a snapshot's output of a rank, or of another rank if it has none. */
function outputOf(snapshot: Snapshot, rank: number): Output {
  const { others, output } = snapshot;
  const saved = others.find((each) => each.rank === rank);
  if (output.rank === rank && output.text) {
    return output;
  }
  return saved ?? (isOver(snapshot) ? { rank, text: '' } : output);
}
