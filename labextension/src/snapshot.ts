/* What is shown of a cluster. `jupyter_sky/cluster/snapshot.py` says the same in Python, and what
   each field means; a test compares the two. */

export interface Snapshot {
  version: 1;
  cluster: Cluster;
  run: Run | null;
  sent_bytes: number;
  nodes: Node[];
  ranks: Rank[];
  output: Output;
}

export interface Cluster {
  name: string;
  provider: string;
  phase: 'starting' | 'ready' | 'lost' | 'down';
  note: string;
  generation: number;
  nodes: number;
  gpu: string | null;
  price: number | null;
  cost: number | null;
}

export interface Run {
  id: string;
  state: 'running' | 'ok' | 'error' | 'interrupted';
  background: boolean;
  started: number;
  seconds: number;
  ranks: number[];
  title: string;
}

export interface Node {
  node: number;
  addr: string;
  gpu: string | null;
}

export interface Rank {
  rank: number;
  node: number;
  phase: 'starting' | 'idle' | 'running' | 'gone';
  utilisation: number | null;
  memory: [number, number] | null;
  gpu: number | null;
  line: string;
  trouble: string | null;
}

export interface Output {
  rank: number;
  text: string;
}

/** What the user does in the view. */
export type Action = { kind: 'select'; rank: number } | { kind: 'stop'; run: string };
