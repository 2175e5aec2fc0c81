/* The clusters of the server's last answer: one model for all places of Lab that show some. */

import { Token } from '@lumino/coreutils';
import { Poll } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';
import type { Entry } from '../api.ts';
import type { Client } from './client.ts';
import type { Settings } from './settings.ts';

/** How many times less often to ask the server while the sidebar is not visible. */
const UNSEEN = 5;

/** The server's event that a state has changed, as `jupyter_sky/server/state_events.py` emits it. */
export const STATES_CHANGED = 'urn:jupyter-sky:states';

/** Most milliseconds between two requests while the server does not answer. */
const RARELY = 30_000;

export interface IClusters {
  readonly client: Client;
  readonly settings: Settings;
  /** The clusters of the last answer; null before the first. */
  readonly entries: readonly Entry[] | null;
  /** The server's version of jupyter_sky; null before the first answer. */
  readonly version: string | null;
  /** Why some clusters may be missing, in a sentence. */
  readonly trouble: string | null;
  /** Emitted after each answer. */
  readonly changed: ISignal<IClusters, void>;
  /** Emitted after an answer in which a cluster is new, gone, or in another state. */
  readonly statesChanged: ISignal<IClusters, void>;
  /** Whether the sidebar is visible; otherwise the server is asked less often. */
  seen: boolean;
  find(id: string): Entry | undefined;
  /** Asks the server now. */
  refresh(): Promise<void>;
}

export const IClusters = new Token<IClusters>(
  'jupyter-sky:IClusters',
  'The clusters of the user, as the server extension of jupyter_sky lists them.'
);

export class Clusters implements IClusters {
  readonly client: Client;
  readonly settings: Settings;
  readonly changed: Signal<IClusters, void> = new Signal<IClusters, void>(this);
  readonly statesChanged: Signal<IClusters, void> = new Signal<IClusters, void>(this);
  entries: readonly Entry[] | null = null;
  version: string | null = null;
  trouble: string | null = null;
  readonly #poll: Poll;
  #seen = false;
  #states = '';
  #isAsking = false;
  #asksAgain = false;

  constructor(client: Client, settings: Settings, events: ISignal<unknown, { schema_id: string }>) {
    this.client = client;
    this.settings = settings;
    this.#poll = new Poll({
      name: 'jupyter-sky:clusters',
      auto: false,
      factory: () => this.#ask(),
      standby: 'when-hidden'
    });
    this.#setFrequency();
    settings.changed.connect(this.#setFrequency, this);
    events.connect(this.#onEvent, this);
  }

  get seen(): boolean {
    return this.#seen;
  }

  set seen(seen: boolean) {
    if (seen !== this.#seen) {
      this.#seen = seen;
      this.#setFrequency();
    }
  }

  find(id: string): Entry | undefined {
    return this.entries?.find((entry) => entry.id === id);
  }

  async refresh(): Promise<void> {
    await this.#askNow();
    await this.#poll.tick;
  }

  #setFrequency(): void {
    const interval = 1000 * this.settings.values.refresh * (this.#seen ? 1 : UNSEEN);
    this.#poll.frequency = { interval, backoff: true, max: Math.max(interval, RARELY) };
    void this.#askNow();
  }

  #onEvent(_: unknown, { schema_id }: { schema_id: string }): void {
    if (schema_id === STATES_CHANGED) {
      void this.#askNow();
    }
  }

  /** Asks at once; while an answer is under way, after it: that one may be of before. */
  async #askNow(): Promise<void> {
    if (this.#isAsking) {
      this.#asksAgain = true;
    } else {
      await this.#poll.refresh();
    }
  }

  async #ask(): Promise<void> {
    this.#isAsking = true;
    try {
      do {
        this.#asksAgain = false;
        const { clusters, jupyter_sky, trouble } = await this.client.clusters();
        this.entries = clusters;
        this.version = jupyter_sky;
        this.trouble = trouble || null;
        this.#emitChanges();
      } while (this.#asksAgain);
    } catch (trouble) {
      this.entries ??= [];
      this.trouble = (trouble as Error).message;
      this.#emitChanges();
      throw trouble;
    } finally {
      this.#isAsking = false;
    }
  }

  #emitChanges(): void {
    this.changed.emit();
    const parts = this.entries?.map(({ id, state, nodes, line }) => [id, state, nodes, line]);
    const states = JSON.stringify(parts);
    if (states !== this.#states) {
      this.#states = states;
      this.statesChanged.emit();
    }
  }
}
