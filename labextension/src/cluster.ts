/* The name of a run's cluster and how that is now: a small part of the strip. */

import { element, setAttribute, setName, setShown } from './dom.ts';
import type { Cluster, Run } from './snapshot.ts';
import { plain } from './text.ts';
import { stateWord, type State, type Translation } from './words.ts';

export class ClusterName {
  readonly element = element('button', 'jsky-cluster', { type: 'button' });
  readonly #trans: Translation;
  readonly #dot = element('span', 'jsky-dot', { 'aria-hidden': 'true' });
  readonly #name = element('span', 'jsky-name');
  #id = '';

  constructor(trans: Translation, show: (cluster: string) => void) {
    this.#trans = trans;
    this.element.append(this.#dot, this.#name);
    this.element.addEventListener('click', () => show(this.#id));
  }

  /** Shows the cluster of a run in that state; it can be clicked if `isLink`. */
  show(cluster: Cluster, run: Run['state'] | 'unknown' | undefined, isLink: boolean): void {
    this.#id = cluster.id;
    setName(this.#name, plain(cluster.name));
    const state = stateOf(cluster.phase, run);
    setShown(this.#dot, state !== null);
    setAttribute(this.#dot, 'data-phase', state);
    const facts = [this.#madeOf(cluster), state && stateWord(this.#trans, state), plain(cluster.note)];
    const title = [plain(cluster.name), ...facts.filter(Boolean)].join(' · ');
    setAttribute(this.element, 'title', title);
    setAttribute(this.element, 'aria-label', this.#trans.__('Cluster %1', title));
    setAttribute(this.element, 'data-note', cluster.note ? '' : null);
    (this.element as HTMLButtonElement).disabled = !isLink;
  }

  #madeOf({ provider, nodes, gpu }: Cluster): string {
    const counted = this.#trans._n('%1 node', '%1 nodes', nodes);
    return [gpu ? `${counted} × ${plain(gpu)}` : counted, plain(provider)].join(' · ');
  }
}

/** How a cluster is as far as the strip of a run knows: before and after that run, others may be at
    work, so null says that only the sidebar knows. */
function stateOf(phase: Cluster['phase'], run: Run['state'] | 'unknown' | undefined): State | null {
  if (phase !== 'ready' || run === undefined) {
    return phase;
  }
  return run === 'running' ? 'running' : null;
}
