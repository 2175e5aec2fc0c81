/* The view of a cluster: `render` shows a snapshot in an element and touches only what changed.
   It knows nothing of Jupyter, and imports nothing but its parts beside it. */

import { ClusterLine } from './cluster.ts';
import { element, setAttribute, setText } from './dom.ts';
import { keepKeys } from './keys.ts';
import { OutputPane } from './output.ts';
import { RankList } from './ranks.ts';
import { RunLine } from './run.ts';
import type { Action, Snapshot } from './snapshot.ts';
import { plain } from './text.ts';
import { english, type Translation } from './words.ts';

export type { Action, Snapshot, Translation };

const views = new WeakMap<HTMLElement, View>();

/** Shows a snapshot in `host`, which belongs to the view until `release`. */
export function render(
  host: HTMLElement,
  snapshot: Snapshot,
  act: (action: Action) => void,
  trans: Translation = english
): void {
  let view = views.get(host);
  if (!view) {
    view = new View(act, trans);
    views.set(host, view);
    host.replaceChildren(view.element);
  }
  view.show(snapshot);
}

/** Takes the view out of `host` again. */
export function release(host: HTMLElement): void {
  views.get(host)?.release();
  views.delete(host);
  host.replaceChildren();
}

class View {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #cluster: ClusterLine;
  readonly #run: RunLine;
  readonly #ranks: RankList;
  readonly #output: OutputPane;
  readonly #announcement = element('div', 'jsky-spoken', { role: 'status', 'aria-live': 'polite' });
  readonly #giveKeysBack: () => void;
  #snapshot: Snapshot | null = null;
  #selected = 0;

  constructor(act: (action: Action) => void, trans: Translation) {
    this.#trans = trans;
    this.#cluster = new ClusterLine(trans);
    this.#run = new RunLine(trans, (run) => act({ kind: 'stop', run }));
    this.#ranks = new RankList(trans, (rank) => {
      this.#select(rank);
      act({ kind: 'select', rank });
    });
    this.#output = new OutputPane(trans);
    this.element = element(
      'section',
      'jsky',
      {},
      element(
        'div',
        'jsky-head',
        {},
        element('div', 'jsky-facts', {}, this.#cluster.element, this.#run.element),
        this.#run.stop
      ),
      this.#ranks.element,
      this.#output.element,
      this.#announcement
    );
    this.#giveKeysBack = keepKeys(this.element);
  }

  show(snapshot: Snapshot): void {
    // The rank whose output the snapshot has; a choice of the user's holds until that changes.
    if (snapshot.output.rank !== this.#snapshot?.output.rank) {
      this.#selected = snapshot.output.rank;
    }
    this.#snapshot = snapshot;
    const name = plain(snapshot.cluster.name);
    setAttribute(this.element, 'aria-label', this.#trans.__('Cluster %1', name));
    this.#cluster.show(snapshot.cluster);
    this.#run.show(snapshot);
    this.#showSelected(snapshot);
    setText(this.#announcement, this.#summary(snapshot));
  }

  release(): void {
    this.#run.release();
    this.#giveKeysBack();
  }

  #select(rank: number): void {
    this.#selected = rank;
    if (this.#snapshot) {
      this.#showSelected(this.#snapshot);
    }
  }

  #showSelected({ nodes, ranks, output }: Snapshot): void {
    this.#ranks.show(nodes, ranks, this.#selected);
    const rank = ranks.find((each) => each.rank === this.#selected);
    this.#output.show(this.#selected, output, rank?.line ?? '');
  }

  /** What a screen reader says when it changes; it leaves out figures, which change all the time. */
  #summary({ cluster, run, ranks }: Snapshot): string {
    const gone = ranks.filter((rank) => rank.phase === 'gone').length;
    return [
      this.#cluster.summary(cluster),
      run ? this.#run.summary(run) : '',
      gone ? this.#trans._n('%1 rank is gone', '%1 ranks are gone', gone) : ''
    ]
      .filter(Boolean)
      .join('. ');
  }
}
