/* What is known of the last ten minutes of the nodes and ranks: it grows by what comes, and forgets. */

import type { History } from './snapshot.ts';

/** Most samples to keep of a node. */
const KEPT = 120;

export type Values = (number | null)[];
export const KINDS = ['processor', 'gpu', 'gpu_memory', 'memory', 'network'] as const;
export type Kind = (typeof KINDS)[number];

/** The usage of a node or a rank, at the times of its node, and the totals. */
export interface Used {
  curves: Map<Kind, Values>;
  totals: Map<Kind, number>;
}

export interface NodeUse extends Used {
  times: number[];
  ranks: Map<number, Used>;
}

/** The known usage of the last ten minutes: a page requests what is new. */
export class Usage {
  readonly nodes = new Map<number, NodeUse>();
  /** The nodes that the user has unfolded. */
  readonly unfolded = new Set<number>();
  /** Whether the user wants to see it. */
  isWanted = false;
  /** The moment up to which it is known. */
  at = 0;
  /** The time of the latest sample. */
  latest = 0;

  add({ at, nodes }: History): void {
    this.at = at;
    for (const part of nodes) {
      const node = this.nodes.get(part.node) ?? { times: [], ranks: new Map(), ...nothing() };
      this.nodes.set(part.node, node);
      const known = node.times.at(-1) ?? -Infinity;
      // After a restart of the kernel, some of them are repeated.
      const first = part.times.findIndex((time) => time > known);
      if (first < 0) {
        continue;
      }
      const before = node.times.length;
      node.times = [...node.times, ...part.times.slice(first)];
      const count = node.times.length;
      extend(node, 'processor', part.processor, first, before, count);
      extend(node, 'memory', part.memory, first, before, count);
      extend(node, 'network', part.network, first, before, count);
      for (const each of part.ranks) {
        const rank = node.ranks.get(each.rank) ?? nothing();
        node.ranks.set(each.rank, rank);
        extend(rank, 'processor', each.processor, first, before, count);
        extend(rank, 'memory', each.memory, first, before, count);
        extend(rank, 'gpu', each.gpu, first, before, count);
        extend(rank, 'gpu_memory', each.gpu_memory, first, before, count);
        if (each.gpu_total !== null) {
          rank.totals.set('gpu_memory', each.gpu_total);
        }
      }
      cut(node);
      addUp(node);
      node.totals.set('processor', part.processors);
      node.totals.set('memory', part.memory_total);
      this.latest = Math.max(this.latest, node.times.at(-1) ?? 0);
    }
  }
}

export function nothing(): Used {
  return { curves: new Map(), totals: new Map() };
}

/** Adds the values of a part, from its `first` on, so that there is one for each time. */
function extend(
  { curves }: Used,
  kind: Kind,
  values: Values,
  first: number,
  before: number,
  count: number
): void {
  const known = curves.get(kind) ?? [];
  const added = values.slice(first);
  if (known.length === 0 && added.length === 0) {
    return;
  }
  const gap: Values = Array.from({ length: before - known.length }, () => null);
  const all = [...known, ...gap, ...added];
  while (all.length < count) {
    all.push(null);
  }
  curves.set(kind, all);
}

/** Forgets values that are too old, and ranks without any. */
function cut(node: NodeUse): void {
  const surplus = node.times.length - KEPT;
  for (const { curves } of [node, ...node.ranks.values()]) {
    for (const [kind, values] of curves) {
      // A rank without new values has a shorter list.
      const whole = [...values, ...Array.from({ length: node.times.length - values.length }, () => null)];
      curves.set(kind, surplus > 0 ? whole.slice(surplus) : whole);
    }
  }
  if (surplus > 0) {
    node.times = node.times.slice(surplus);
  }
  for (const [rank, { curves }] of node.ranks) {
    if ([...curves.values()].every((values) => values.every((value) => value === null))) {
      node.ranks.delete(rank);
    }
  }
}

/** The GPUs of a node's ranks: their average utilisation and total memory. */
function addUp(node: NodeUse): void {
  const ranks = [...node.ranks.values()];
  for (const kind of ['gpu', 'gpu_memory'] as const) {
    const curves = ranks.map((rank) => rank.curves.get(kind)).filter((values) => values !== undefined);
    if (curves.length > 0) {
      const values = node.times.map((_, at) => {
        const known = curves.map((each) => each[at] ?? null).filter((value) => value !== null);
        const sum = known.reduce((all, value) => all + value, 0);
        return known.length === 0 ? null : kind === 'gpu' ? sum / known.length : sum;
      });
      node.curves.set(kind, values);
    }
  }
  const total = ranks.reduce((all, { totals }) => all + (totals.get('gpu_memory') ?? 0), 0);
  node.totals.set('gpu_memory', total);
}
