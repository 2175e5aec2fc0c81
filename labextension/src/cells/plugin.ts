/* The plugin that shows runs in the cells of notebooks. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import type { IDisplayData } from '@jupyterlab/nbformat';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import type { Action, Ask } from '../action.ts';
import { ask, type Kernel } from '../kernel.ts';
import { IClusters } from '../lab/clusters.ts';
import { follow } from '../lab/follow.ts';
import { complain, notify } from '../lab/notices.ts';
import { SHOW } from '../lab/sidebar.ts';
import { showWhere } from '../lab/where.ts';
import { CHANGED } from '../panel.ts';
import { isOver } from '../run.ts';
import type { Snapshot } from '../snapshot.ts';
import { OwnSessions } from './askers.ts';
import { backgroundOf, Cells, runOf, updateOutputs } from './cells.ts';
import { Feed } from './feed.ts';
import { FollowedRanks } from './followed.ts';
import { Keeper } from './keeper.ts';
import { MissedRuns } from './missed.ts';
import { takeBackQuestions } from './questions.ts';
import { fromSaved, MIME, type RunOutput } from './record.ts';
import { RunStrip, type Page } from './strip.ts';
import { hasKernel, Texts } from './texts.ts';

/** Preferred to the widget of the same output, which a busy kernel cannot show. */
const RANK = -20;

/** Milliseconds after which Stop asks the server if the kernel has not reacted. */
const PATIENCE = 1500;

/** Lines to show of another rank's output. */
const LINES = 200;

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-sky:runs',
  description: 'Shows above the output of a cell how its run goes.',
  autoStart: true,
  requires: [IClusters, IRenderMimeRegistry, INotebookTracker],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    registry: IRenderMimeRegistry,
    tracker: INotebookTracker,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_sky');
    const feed = new Feed();
    const cells = new Cells(tracker);
    const texts = new Texts(clusters, feed, cells, trans);
    const keeper = new Keeper(clusters, feed, cells, texts, trans);
    const missed = new MissedRuns(clusters, cells, texts);
    const ranks = new FollowedRanks(
      feed,
      (cluster, rank, onChunk) => follow(clusters.client, cluster, rank, LINES, onChunk),
      (strip) => texts.isIncomplete(strip)
    );
    const page = new NotebookPage(app, clusters, feed, cells, keeper, texts, ranks, trans);
    registry.addFactory(
      {
        safe: true,
        mimeTypes: [MIME],
        defaultRank: RANK,
        createRenderer: () => new RunStrip(feed, page, trans)
      },
      RANK
    );
    document.addEventListener(CHANGED, (event) => {
      feed.take((event as CustomEvent<Snapshot>).detail, 'kernel');
    });
    takeBackQuestions(tracker);
    const own = new OwnSessions(sessionStorage, window);
    tracker.widgetAdded.connect((_, panel) => {
      listen(app, panel, texts, missed, clusters, own);
      const { context, sessionContext } = panel;
      Promise.all([context.ready, sessionContext.ready])
        .then(() => missed.catchUp(panel))
        .catch(console.error);
    });
  }
};

export default plugin;

/** Notes which runs send their messages to this page, and whether these reach their cells. */
function listen(
  app: JupyterFrontEnd,
  panel: NotebookPanel,
  texts: Texts,
  missed: MissedRuns,
  clusters: IClusters,
  own: OwnSessions
): void {
  /** What has begun since the page was loaded, of whichever page. */
  const begun = new Set<string>();
  panel.sessionContext.kernelChanged.connect((_, { newValue: kernel }) => {
    if (kernel) {
      own.add(kernel.clientId);
    }
  });
  panel.sessionContext.iopubMessage.connect((_, { header, parent_header: parent, content }) => {
    if (header.msg_type === 'execute_input' && 'msg_id' in parent) {
      begun.add(parent.msg_id);
    }
    if (header.msg_type === 'display_data' || header.msg_type === 'update_display_data') {
      const { data, metadata } = content as Pick<IDisplayData, 'data' | 'metadata'>;
      const output: IDisplayData = { output_type: 'display_data', data, metadata };
      const run = runOf(output);
      // What this page asked for before it was loaded again goes into no cell, even if it begins only
      // now. What another page asks for goes into its cells, and two pages must not both write the file.
      const of = 'session' in parent ? asker(app, panel, parent.session) : undefined;
      const isOwn = 'session' in parent && own.has(parent.session);
      const isOfOther = 'msg_id' in parent && begun.has(parent.msg_id) && !isOwn;
      if (run && (of || isOfOther) && header.msg_type === 'display_data') {
        texts.comesHere(run, of ?? panel.sessionContext);
      } else if (run ? texts.isHere(run) || clusters.trouble !== null : backgroundOf(output)) {
        // After a reload it is the server's record, which also has the text; where the server cannot
        // tell, there is nothing else.
        updateOutputs(panel, output);
      } else if (run && isOwn && isOver(fromSaved((data[MIME] as unknown as RunOutput).snapshot))) {
        // The server was perhaps never asked while it went on.
        missed.catchUp(panel).catch(console.error);
      }
    }
  });
  panel.sessionContext.statusChanged.connect((_, status) => {
    if (status === 'restarting' || status === 'autorestarting') {
      texts.ended(panel);
    }
  });
  panel.disposed.connect(() => texts.ended(panel));
}

/** Returns what of this page has asked a notebook's kernel for something, in a session of messages:
    the notebook, or another one or a console that share its kernel. */
function asker(
  { shell }: JupyterFrontEnd,
  panel: NotebookPanel,
  session: string
): ISessionContext | undefined {
  return [panel, ...shell.widgets('main')]
    .map((widget) => (widget as Partial<Pick<NotebookPanel, 'sessionContext'>>).sessionContext)
    .find((context) => context?.session?.kernel?.clientId === session);
}

/** The notebooks of a page, as strips use them. */
class NotebookPage implements Page {
  readonly hasSidebar = true;
  readonly #app: JupyterFrontEnd;
  readonly #clusters: IClusters;
  readonly #feed: Feed;
  readonly #cells: Cells;
  readonly #keeper: Keeper;
  readonly #texts: Texts;
  readonly #ranks: FollowedRanks;
  readonly #trans: TranslationBundle;

  constructor(
    app: JupyterFrontEnd,
    clusters: IClusters,
    feed: Feed,
    cells: Cells,
    keeper: Keeper,
    texts: Texts,
    ranks: FollowedRanks,
    trans: TranslationBundle
  ) {
    this.#app = app;
    this.#clusters = clusters;
    this.#feed = feed;
    this.#cells = cells;
    this.#keeper = keeper;
    this.#texts = texts;
    this.#ranks = ranks;
    this.#trans = trans;
  }

  attached(strip: RunStrip): void {
    this.#keeper.add(strip);
    this.#ranks.follow(strip);
  }

  detached(strip: RunStrip): void {
    this.#ranks.unfollow(strip);
    this.#keeper.remove(strip);
  }

  isIncomplete(strip: RunStrip): boolean {
    return this.#texts.isIncomplete(strip);
  }

  followSelected(strip: RunStrip): void {
    this.#ranks.follow(strip);
  }

  address(path: string): string {
    return this.#clusters.client.address(path);
  }

  askOf(strip: RunStrip): Ask | null {
    const { snapshot } = strip;
    return snapshot && hasKernel(this.#clusters, strip) ? this.#clusters.client.ask(snapshot.cluster.id) : null;
  }

  act(action: Action, strip: RunStrip): void {
    switch (action.kind) {
      case 'stop':
        void this.#stop(strip, action);
        break;
      case 'where':
        void this.#where(strip, action);
        break;
      case 'select':
        this.#select(strip, action);
        break;
      case 'open':
        this.#tellKernel(strip, action);
        break;
      case 'restore':
        this.#texts.restore(strip).catch((trouble) => complain(trouble, this.#trans));
        break;
      case 'cluster':
        void this.#app.commands.execute(SHOW, { cluster: action.cluster });
        break;
      case 'go':
        this.#go(strip, action);
        break;
    }
  }

  /** Stops a run by its kernel, or through the server if that has no effect. */
  async #stop(strip: RunStrip, action: Action & { kind: 'stop' }): Promise<void> {
    if (hasKernel(this.#clusters, strip) && this.#tellKernel(strip, action)) {
      await new Promise((passed) => setTimeout(passed, PATIENCE));
    }
    const { snapshot } = strip;
    if (snapshot && !isOver(snapshot)) {
      try {
        await this.#clusters.client.interrupt(snapshot.cluster.id, action.run);
      } catch (trouble) {
        complain(trouble, this.#trans);
      }
    }
  }

  /** Lets the strip show where the ranks are, by its kernel or the server. */
  async #where(strip: RunStrip, action: Action): Promise<void> {
    const { snapshot } = strip;
    if (!snapshot || (hasKernel(this.#clusters, strip) && this.#tellKernel(strip, action))) {
      return;
    }
    try {
      const { said } = await this.#clusters.client.where(snapshot.cluster.id);
      await showWhere(snapshot.cluster.name, said, this.#trans);
    } catch (trouble) {
      complain(trouble, this.#trans);
    }
  }

  /** Shows the output of a rank, from the kernel or, failing that, the server. */
  #select(strip: RunStrip, action: Action & { kind: 'select' }): void {
    this.#ranks.follow(strip);
    const { snapshot } = strip;
    if (snapshot && !isOver(snapshot) && action.run !== null && this.#feed.isHeard(action.run)) {
      this.#tellKernel(strip, action);
    }
  }

  #tellKernel(strip: RunStrip, action: Action): boolean {
    // A strip may also be in a console.
    const panel = [...this.#app.shell.widgets('main')].find(({ node }) => node.contains(strip.node));
    const session = (panel as Partial<NotebookPanel> | undefined)?.sessionContext?.session;
    const kernel: Kernel | null | undefined = session?.kernel;
    return Boolean(kernel && ask(kernel, action));
  }

  #go(strip: RunStrip, { place }: Action & { kind: 'go' }): void {
    const panel = this.#cells.notebookOf(strip.node);
    if (place.cell !== null && panel) {
      this.#cells.go(panel, place);
    } else if (place.file !== null) {
      const root = `${PageConfig.getOption('serverRoot').replace(/\/$/, '')}/`;
      if (place.file.startsWith(root)) {
        const path = place.file.slice(root.length);
        void this.#app.commands.execute('docmanager:open', { path });
      } else {
        notify('info', place.file, this.#trans);
      }
    }
  }
}
