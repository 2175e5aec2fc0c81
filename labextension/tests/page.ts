/* A document to render into, and a cluster to render. */

import { JSDOM } from 'jsdom';
import type { Entry, LogChunk, LogEntry } from '../src/api.ts';
import type { Tools } from '../src/sidebar/tools.ts';
import type { Rank, Snapshot } from '../src/snapshot.ts';
import { english } from '../src/words.ts';

const { window } = new JSDOM('<!doctype html><body></body>', {
  pretendToBeVisual: true,
  runScripts: 'dangerously'
});

/** The document; a script that got into it would run. */
export const document = window.document;
export const { CustomEvent, Event, KeyboardEvent, MouseEvent, MutationObserver } = window;
const requestAnimationFrame = window.requestAnimationFrame.bind(window);
// jsdom has no layout, so nothing to scroll.
window.Element.prototype.scrollIntoView = () => {};
const { DOMParser } = window;
Object.assign(globalThis, {
  CustomEvent,
  document,
  DragEvent: window.Event, // jsdom has none
  Element: window.Element,
  DOMParser,
  MutationObserver,
  requestAnimationFrame
});

/** Returns a fresh place in the document. */
export function place(): HTMLElement {
  return document.body.appendChild(document.createElement('div'));
}

/** Returns a cluster with a run on all its ranks, two of them on each node. */
export function sample(count = 4): Snapshot {
  const ranks = Array.from({ length: count }, (_, rank) => sampleRank(rank));
  return {
    version: 1,
    cluster: {
      id: 'c1',
      name: 'demo',
      provider: 'local',
      phase: 'ready',
      note: '',
      generation: 1,
      nodes: count / 2,
      gpu: 'A100',
      price: null,
      cost: null,
      unit: 'dollars',
      pages: []
    },
    run: {
      id: 'r1',
      state: 'running',
      background: false,
      started: 0,
      seconds: 61,
      ranks: ranks.map(({ rank }) => rank),
      shown: [0],
      title: 'train(3)',
      cell: null,
      progress: null,
      cost: null,
      trouble: null,
      where: null,
      warns: false,
      attempt: null,
      earlier: []
    },
    sent_bytes: 1_234_567,
    nodes: Array.from({ length: count / 2 }, (_, node) => ({ node, addr: '10.0.0.1', gpu: 'A100' })),
    ranks,
    output: { rank: 0, text: 'one\ntwo\n' },
    others: [],
    curves: []
  };
}

function sampleRank(rank: number): Rank {
  return {
    rank,
    node: Math.floor(rank / 2),
    phase: 'running',
    utilisation: 0.5,
    memory: [12.1e9, 40e9],
    gpu: rank % 2,
    line: `line of ${rank}`,
    trouble: null,
    outcome: null,
    seconds: null,
    error: null,
    progress: null,
    restarted: false,
    began_empty: false
  };
}

/** Returns a cluster as the server tells of it, with a notebook that is connected to it. */
export function sampleEntry(changes: Partial<Entry> = {}): Entry {
  return {
    id: 'c1',
    name: 'demo',
    provider: 'aws',
    nodes: 2,
    gpu: 'A100',
    created: 1000,
    state: 'running',
    note: '',
    kernels: [
      { id: 'k1', notebook: 'train.ipynb', path: 'a/train.ipynb', busy: true, jupyter_sky: '0.1.0' }
    ],
    price: 16.4,
    cost: 2.05,
    unit: 'dollars',
    stoppable: true,
    running_price: 16.4,
    idle: { timeout: 1800, left: 240, keeps_disks: false },
    line: '%%sky --provider aws --nodes 2 --gpu A100',
    snapshot: sample(),
    snapshot_kernel: 'k1',
    seen: 1000,
    ...changes
  };
}

/** Returns what a rank wrote, as a part of its log. */
export function written(text: string, changes: Partial<LogEntry> = {}): LogEntry {
  return { rank: 0, time: 1000, stream: 'stdout', text, run: null, title: '', ...changes };
}

export function chunk(text: string, end: string | null = null): LogChunk {
  return { entries: [written(text)], end };
}

/** What a page lends to the sidebar. */
export const tools: Tools = {
  trans: english,
  icon: (name) => {
    const icon = document.createElement('i');
    icon.dataset.icon = name;
    return icon;
  }
};

/** What tqdm writes for a bar in the loop of another one. */
export const NESTED =
  '\repochs 0/2\n\rbatches 0/2\x1b[A\n\rbatches 1/2\x1b[A\repochs 1/2\n\rbatches 2/2\x1b[A';

/** Waits until what is drawn with the next frame is there. */
export const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));

/** Counts what happens to the elements below `host` while `act` runs; returns the changed ones. */
export function touched(host: HTMLElement, act: () => void): Set<Element> {
  const observer = new MutationObserver(() => {});
  observer.observe(host, { attributes: true, characterData: true, childList: true, subtree: true });
  act();
  const changed = observer.takeRecords().map(({ target }) =>
    target.nodeType === 1 ? (target as Element) : target.parentElement!
  );
  observer.disconnect();
  return new Set(changed);
}

export function textOf(host: HTMLElement, selector: string): string {
  return host.querySelector(selector)?.textContent ?? '';
}

export function texts(host: HTMLElement, selector: string): string[] {
  return [...host.querySelectorAll(selector)].map((node) => node.textContent ?? '');
}

/** Waits until what was promised is there. */
export const settled = () => new Promise((done) => setImmediate(done));
