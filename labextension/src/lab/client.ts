/* Requests to the server extension, `jupyter_sky/server`. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Ask } from '../action.ts';
import type {
  ActionResult,
  Clusters,
  Environment,
  Offers,
  Record,
  Runs,
  TerminalName
} from '../api.ts';
import type { Wanted } from '../sidebar/form.ts';

/** Milliseconds for what is asked again and again, but only after an answer: a connection that a
    sleeping computer has lost answers never. */
const PATIENCE = 60_000;

/** What went wrong, as a sentence for the user. */
export class RequestError extends Error {
  /** The status of the answer; 0 if there was none. */
  readonly status: number;

  constructor(message: string, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Client {
  readonly #settings: ServerConnection.ISettings;
  readonly #trans: TranslationBundle;

  constructor(settings: ServerConnection.ISettings, trans: TranslationBundle) {
    this.#settings = settings;
    this.#trans = trans;
  }

  clusters(): Promise<Clusters> {
    return this.#read(['clusters']);
  }

  /** Stops a run, or what runs now with null. */
  interrupt(cluster: string, run: string | null): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'interrupt'], { run });
  }

  /** Asks what each rank of a cluster is doing. */
  where(cluster: string): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'where']);
  }

  /** Restarts ranks, all of them with null. */
  restart(cluster: string, ranks: number[] | null): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'restart'], { ranks });
  }

  /** Changes the number of nodes, at a price of all in dollars per hour; null if none was named. */
  scale(cluster: string, nodes: number, price: number | null): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'scale'], { nodes, max_price: price });
  }

  /** Opens a terminal of Jupyter's with a shell on the node of a rank. */
  terminal(cluster: string, rank: number): Promise<TerminalName> {
    return this.#request('POST', ['clusters', cluster, 'terminal'], { rank });
  }

  /** Asks what stopping the machines of a cluster would lose and cost. */
  foreseeStop(cluster: string): Promise<ActionResult> {
    return this.#request('GET', ['clusters', cluster, 'stop']);
  }

  /** Stops the machines of a cluster; `interrupt` stops its run. */
  stop(cluster: string): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'stop']);
  }

  /** Starts stopped machines, at a price in dollars per hour; null if it is not known. */
  start(cluster: string, price: number | null): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'start'], { max_price: price });
  }

  down(cluster: string): Promise<ActionResult> {
    return this.#request('POST', ['clusters', cluster, 'down']);
  }

  /** Asks a kernel for its last runs on a cluster that are over. */
  runs(cluster: string, kernel: string): Promise<Runs> {
    const query = URLExt.objectToQueryString({ kernel });
    return this.#read(['clusters', cluster, 'runs'], query);
  }

  /** Asks the kernel that began a run for its state, or how it ended. */
  record(cluster: string, run: string): Promise<Record> {
    return this.#read(['clusters', cluster, 'runs', run]);
  }

  /** Returns a function that asks a cluster's kernel, through the server. */
  ask(cluster: string): Ask {
    return {
      history: (since) => {
        const query = URLExt.objectToQueryString({ since: String(since) });
        return this.#read(['clusters', cluster, 'history'], query);
      },
      variables: () => this.#request('GET', ['clusters', cluster, 'variables']),
      profile: () => this.#request('POST', ['clusters', cluster, 'profile'])
    };
  }

  environment(kernel: string): Promise<Environment> {
    return this.#read(['kernels', kernel]);
  }

  offers({ provider, nodes, gpu }: Wanted): Promise<Offers> {
    const asked = Object.entries({ provider, nodes: String(nodes), gpu });
    const query = URLExt.objectToQueryString(Object.fromEntries(asked.filter(([, value]) => value)));
    return this.#request('GET', ['offers'], undefined, query);
  }

  /** Opens the live logs of ranks, given like `0,2-3`, from their last `tail` lines on. */
  live(cluster: string, ranks: string, tail: number): WebSocket {
    const { wsUrl, token, appendToken, WebSocket } = this.#settings;
    const query = { tail: String(tail), ...(appendToken && token ? { token } : {}) };
    const parts = ['clusters', cluster, 'live', ranks].map(encodeURIComponent);
    const url = URLExt.join(wsUrl, 'jupyter-sky', 'api', ...parts);
    return new WebSocket(url + URLExt.objectToQueryString(query));
  }

  /** Returns the address of a rank's whole log, for saving. */
  logFile(cluster: string, rank: number): string {
    const { baseUrl, token, appendToken } = this.#settings;
    const parts = ['clusters', cluster, 'logs', String(rank), 'file'].map(encodeURIComponent);
    const url = URLExt.join(baseUrl, 'jupyter-sky', 'api', ...parts);
    return appendToken && token ? url + URLExt.objectToQueryString({ token }) : url;
  }

  /** Returns the address of a node's page, which requires a login. */
  address(path: string): string {
    return URLExt.join(this.#settings.baseUrl, path);
  }

  #read<Answer>(parts: string[], query = ''): Promise<Answer> {
    return this.#request('GET', parts, undefined, query, AbortSignal.timeout(PATIENCE));
  }

  async #request<Answer>(
    method: string,
    parts: string[],
    content?: unknown,
    query = '',
    signal: AbortSignal | null = null
  ): Promise<Answer> {
    const place = URLExt.join('jupyter-sky', 'api', ...parts.map(encodeURIComponent));
    const url = URLExt.join(this.#settings.baseUrl, place) + query;
    const init: RequestInit = { method, cache: 'no-store', signal };
    if (method === 'POST') {
      init.body = JSON.stringify(content ?? {});
    }
    const response = await this.#send(url, init);
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) {
      return answer;
    }
    throw new RequestError(answer?.message || this.#messageFor(response.status), response.status);
  }

  async #send(url: string, init: RequestInit): Promise<Response> {
    try {
      return await ServerConnection.makeRequest(url, init, this.#settings);
    } catch {
      throw new RequestError(
        this.#trans.__("Jupyter's server does not answer; what is shown here may be out of date.")
      );
    }
  }

  /** The sentence for a status that came without one. */
  #messageFor(status: number): string {
    if (status === 404) {
      return this.#trans.__(
        "Jupyter's server has no jupyter_sky: run %1 where the server runs, then start it again.",
        '`pip install jupyter-sky`'
      );
    }
    if (status === 401 || status === 403) {
      return this.#trans.__("You are no longer logged in to Jupyter: reload this page.");
    }
    return this.#trans.__("Jupyter's server answered with status %1.", status);
  }
}
