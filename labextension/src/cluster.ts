/* The name of a run's cluster and how that is now: a small part of the strip. */

import { element, setAttribute, setText } from './dom.ts';
import type { Cluster } from './snapshot.ts';
import { plain } from './text.ts';
import type { Translation } from './words.ts';

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

  /** Shows a cluster; a click on it does something where `isLink` says so. */
  show(cluster: Cluster, isLink: boolean): void {
    this.#id = cluster.id;
    setText(this.#name, plain(cluster.name));
    setAttribute(this.#dot, 'data-phase', cluster.phase);
    const facts = [this.#madeOf(cluster), this.#words(cluster.phase), plain(cluster.note)];
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

  #words(phase: Cluster['phase']): string {
    switch (phase) {
      case 'starting':
        return this.#trans.__('starting');
      case 'ready':
        return this.#trans.__('ready');
      case 'lost':
        return this.#trans.__('lost');
      default:
        return this.#trans.__('ended');
    }
  }
}
