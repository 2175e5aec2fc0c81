/* The first line: the cluster's name, its nodes and its phase. */

import { element, setAttribute, setOptional, setText } from './dom.ts';
import type { Cluster } from './snapshot.ts';
import { plain } from './text.ts';
import type { Translation } from './words.ts';

export class ClusterLine {
  readonly element: HTMLElement;
  readonly #trans: Translation;
  readonly #name = element('strong', 'jsky-name');
  readonly #made = element('span', 'jsky-quiet');
  readonly #dot = element('span', 'jsky-dot', { 'aria-hidden': 'true' });
  readonly #phase = element('span', 'jsky-phase');
  readonly #note = element('span', 'jsky-note');

  constructor(trans: Translation) {
    this.#trans = trans;
    const state = element('span', 'jsky-state', {}, this.#dot, this.#phase);
    this.element = element('div', 'jsky-cluster', {}, this.#name, state, this.#made, this.#note);
  }

  show(cluster: Cluster): void {
    setText(this.#name, plain(cluster.name));
    setText(this.#made, this.#madeOf(cluster));
    setAttribute(this.#dot, 'data-phase', cluster.phase);
    setText(this.#phase, this.#words(cluster.phase));
    setOptional(this.#note, plain(cluster.note));
  }

  summary(cluster: Cluster): string {
    return this.#trans.__('Cluster %1 is %2', plain(cluster.name), this.#words(cluster.phase));
  }

  #madeOf({ provider, nodes, gpu }: Cluster): string {
    const parts = gpu
      ? [this.#trans._n('%1 node × %2', '%1 nodes × %2', nodes, plain(gpu))]
      : [this.#trans._n('%1 node', '%1 nodes', nodes), this.#trans.__('CPU')];
    parts.push(plain(provider));
    return parts.join(' · ');
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
        return this.#trans.__('down');
    }
  }
}
