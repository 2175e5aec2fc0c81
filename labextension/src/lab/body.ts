/* The content of the sidebar, as a widget: it is updated while it is visible. */

import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { element, setShown, setText } from '../dom.ts';
import { keepKeys } from '../keys.ts';
import { freeName, totalOf } from '../sidebar/facts.ts';
import { NewCluster } from '../sidebar/form.ts';
import { ClusterList } from '../sidebar/list.ts';
import type { Tools } from '../sidebar/tools.ts';
import type { Translation } from '../words.ts';
import type { IClusters } from './clusters.ts';
import { commandOf } from './commands.ts';
import { EnvironmentNote } from './environment.ts';
import { follow } from './follow.ts';
import type { Notebooks } from './notebooks.ts';

/** Number of last lines to show first when following a rank. */
const TAIL = 200;

export class SidebarBody extends Widget {
  /** For the toolbar: the number of clusters, and their cost. */
  readonly total = new Widget({ node: element('div', 'jsky-total') });
  readonly #trans: Translation;
  readonly #clusters: IClusters;
  readonly #list: ClusterList;
  readonly #form: NewCluster;
  readonly #environment: EnvironmentNote;
  readonly #notebooks: Notebooks;
  #wanted: string | null = null;

  constructor(
    commands: CommandRegistry,
    clusters: IClusters,
    notebooks: Notebooks,
    tools: Tools
  ) {
    const environment = new EnvironmentNote(clusters, notebooks, tools.trans);
    const closeForm = () => setShown(form.element, false);
    const form = new NewCluster(
      tools,
      {
        offers: (wanted) => clusters.client.offers(wanted),
        insert: (words, place) => {
          void notebooks.insert(place === 'above' ? words : `up ${words}`, place);
          closeForm();
        }
      },
      closeForm
    );
    const list = new ClusterList(tools, {
      act: (action, cluster, rank) => void commands.execute(commandOf(action), { cluster, rank }),
      go: (path) => notebooks.go(path),
      address: (path) => clusters.client.address(path),
      ask: (cluster) => clusters.client.ask(cluster),
      follow: (cluster, ranks, onChunk) => follow(clusters.client, cluster, ranks, TAIL, onChunk)
    });
    closeForm();
    super({
      node: element('div', 'jsky-body', {}, environment.element, form.element, list.element)
    });
    this.#trans = tools.trans;
    this.#clusters = clusters;
    this.#list = list;
    this.#form = form;
    this.#environment = environment;
    this.#notebooks = notebooks;
    keepKeys(this.node);
    // Until it is disposed.
    clusters.changed.connect(this.#show, this);
    notebooks.kernelChanged.connect(this.#sayWhereItStarts, this);
  }

  /** Shows the form for a new cluster. */
  openForm(): void {
    setShown(this.#form.element, true);
    this.#sayWhereItStarts();
    this.#form.open(this.#clusters.settings.values);
  }

  /** Opens the card of a cluster, once it exists. */
  reveal(cluster: string): void {
    this.#wanted = cluster;
    this.#show();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.#onVisible();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.#onVisible();
  }

  protected override onBeforeHide(message: Message): void {
    this.#onHidden();
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.#onHidden();
    super.onBeforeDetach(message);
  }

  #sayWhereItStarts(): void {
    this.#form.startsIn(this.#notebooks.current?.title.label ?? null, this.#freeName());
  }

  /** A name beside the cluster that the notebook has; empty if it has none, as its own is free then. */
  #freeName(): string {
    const entries = this.#clusters.entries ?? [];
    const { kernel } = this.#notebooks;
    const own = entries.find(({ kernels }) => kernels.some(({ id }) => id === kernel));
    return own ? freeName(own.name, entries) : '';
  }

  #onVisible(): void {
    if (this.isVisible) {
      this.#clusters.seen = true;
      this.#environment.start();
      this.#show();
    }
  }

  #onHidden(): void {
    this.#clusters.seen = false;
    this.#environment.stop();
    this.#list.pause();
  }

  #show(): void {
    const { entries, trouble } = this.#clusters;
    if (!this.isVisible || !entries) {
      return;
    }
    this.#list.show(entries, trouble, Date.now() / 1000);
    this.#sayWhereItStarts();
    setText(this.total.node, entries.length > 0 ? totalOf(this.#trans, entries) : '');
    if (this.#wanted && this.#clusters.find(this.#wanted)) {
      this.#list.reveal(this.#wanted);
      this.#wanted = null;
    }
  }
}
