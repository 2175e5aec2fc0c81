/* What is shown of a run and its cluster. `jupyter_sky/cluster/snapshot.py` says the same in Python, and what
   each field means; a test compares the two. */

export interface Snapshot {
  version: 1;
  cluster: Cluster;
  run: Run | null;
  sent_bytes: number;
  nodes: Node[];
  ranks: Rank[];
  output: Output;
  others: Output[];
  curves: Curve[];
}

export interface Curve {
  name: string;
  rank: number;
  steps: number[];
  values: (number | null)[];
  last: number | null;
  count: number;
  gaps: number;
}

export interface Cluster {
  id: string;
  name: string;
  provider: string;
  phase: 'starting' | 'ready' | 'lost' | 'down';
  note: string;
  generation: number;
  nodes: number;
  gpu: string | null;
  price: number | null;
  cost: number | null;
  unit: 'dollars' | 'GPU hours' | 'node hours';
  pages: Page[];
}

export interface Page {
  label: string;
  path: string;
}

export interface Run {
  id: string;
  state: 'waiting' | 'running' | 'ok' | 'error' | 'interrupted';
  background: boolean;
  started: number;
  seconds: number;
  ranks: number[];
  shown: number[];
  title: string;
  cell: string | null;
  progress: Progress | null;
  cost: number | null;
  trouble: string | null;
  where: string | null;
  warns: boolean;
  attempt: [number, number] | null;
  earlier: string[];
}

export interface Progress {
  label: string;
  part: number;
  count: string;
  left: number | null;
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
  outcome: 'ok' | 'error' | 'lost' | 'stopped' | 'released' | null;
  seconds: number | null;
  error: string | null;
  progress: Progress | null;
  restarted: boolean;
  began_empty: boolean;
}

export interface Output {
  rank: number;
  text: string;
}

export interface History {
  at: number;
  nodes: NodeHistory[];
}

export interface NodeHistory {
  node: number;
  times: number[];
  processors: number;
  memory_total: number;
  processor: (number | null)[];
  memory: (number | null)[];
  network: (number | null)[];
  ranks: RankHistory[];
}

export interface RankHistory {
  rank: number;
  processor: (number | null)[];
  memory: (number | null)[];
  gpu: (number | null)[];
  gpu_memory: (number | null)[];
  gpu_total: number | null;
}

export interface Variables {
  head: string[];
  rows: VariableRow[];
  notes: string[];
}

export interface VariableRow {
  cells: string[];
  differs: boolean;
}

export interface Profile {
  html: string;
}
