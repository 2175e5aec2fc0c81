/* What the server extension answers, and what it is asked. `jupyter_sky/server/schema.json` says the
   same as a JSON schema, with the routes and what each field means; a test compares the two. */

import type { Run, Snapshot } from './snapshot.ts';

export interface Clusters {
  version: 1;
  jupyter_sky: string;
  trouble: string;
  clusters: Entry[];
}

export interface Entry {
  id: string;
  name: string;
  provider: string;
  nodes: number | null;
  gpu: string | null;
  created: number | null;
  state: 'starting' | 'ready' | 'running' | 'lost' | 'stopped' | 'down' | 'unknown';
  note: string;
  kernels: Kernel[];
  price: number | null;
  cost: number | null;
  unit: 'dollars' | 'GPU hours' | 'node hours';
  stoppable: boolean;
  running_price: number | null;
  idle: IdleTimeout | null;
  line: string | null;
  snapshot: Snapshot | null;
  snapshot_kernel: string | null;
  seen: number | null;
}

export interface Kernel {
  id: string;
  notebook: string;
  path: string | null;
  busy: boolean;
  jupyter_sky: string;
}

export interface IdleTimeout {
  timeout: number;
  left: number | null;
  keeps_disks: boolean;
}

export interface Interrupt {
  run: string | null;
}

export interface Restart {
  ranks: number[] | null;
}

export interface Scale {
  nodes: number;
  max_price: number | null;
}

export interface Start {
  max_price: number | null;
}

export interface Terminal {
  rank: number;
}

export interface TerminalName {
  terminal: string;
}

export interface ActionResult {
  said: string;
}

export interface ErrorMessage {
  message: string;
}

export interface Log {
  rank: number;
  text: string;
}

export interface LogChunk {
  entries: LogEntry[];
  end: string | null;
}

export interface Runs {
  ended: Run[];
}

export interface Record {
  snapshot: Snapshot;
  html: string;
  plain: string;
  text: string;
  cut: boolean;
}

export interface LogEntry {
  rank: number;
  time: number;
  stream: 'stdout' | 'stderr' | 'log';
  text: string;
  run: string | null;
  title: string;
}

export interface Environment {
  loaded: boolean;
  jupyter_sky: string | null;
  note: string;
}

export interface Offers {
  offers: Offer[];
  notes: string[];
  providers: string[];
}

export interface Offer {
  provider: string;
  description: string;
  gpu: string | null;
  price: number | null;
  line: string;
}
