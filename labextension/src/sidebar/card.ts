/* One cluster: how it is in a few lines, and below them, once it is opened, the view of its ranks. */

import type { Ask } from '../action.ts';
import type { Entry } from '../api.ts';
import { element, setAttribute, setName, setOptional, setShown, setText } from '../dom.ts';
import { PageLinks } from '../pages.ts';
import { isOver } from '../run.ts';
import { plain } from '../text.ts';
import { stateWord } from '../words.ts';
import { ActionBar, actionButton, isPossible, type Action } from './actions.ts';
import { costOf, doingOf, endOf, madeOf, upOf } from './facts.ts';
import { Ranks, type Follow } from './ranks.ts';
import { setSentence } from '../sentence.ts';
import type { Tools } from './tools.ts';

/** What a card needs of the page. */
export interface Page {
  /** Runs an action on a cluster, or on the selected rank if it is about a rank. */
  act(action: Action, cluster: string, rank: number): void;
  /** Shows a notebook. */
  go(path: string): void;
  /** Returns the address of a path of Jupyter's server. */
  address(path: string): string;
  follow: Follow;
  /** Returns a function that answers questions about a cluster. */
  ask(cluster: string): Ask;
}

export class Card {
  readonly element: HTMLElement;
  readonly #tools: Tools;
  readonly #page: Page;
  readonly #opener: HTMLElement;
  readonly #stop: HTMLElement;
  readonly #start: HTMLElement;
  readonly #caret = element('span', 'jsky-caret', { 'aria-hidden': 'true' });
  readonly #dot = element('span', 'jsky-dot', { 'aria-hidden': 'true' });
  readonly #name = element('span', 'jsky-name');
  readonly #state = element('span', 'jsky-card-state');
  readonly #made = element('span', 'jsky-card-made');
  readonly #users = element('div', 'jsky-users');
  readonly #pages: PageLinks;
  readonly #cost = element('div', 'jsky-card-cost jsky-quiet');
  readonly #up = element('span', 'jsky-fact jsky-quiet');
  readonly #end = element('div', 'jsky-fact');
  readonly #doing = element('div', 'jsky-quiet');
  readonly #note = element('div', 'jsky-note');
  readonly #actions: ActionBar;
  readonly #body: HTMLElement;
  readonly #ranks: Ranks;
  #entry: Entry;
  #open = false;
  #usersShown = '';

  constructor(tools: Tools, page: Page, entry: Entry) {
    this.#tools = tools;
    this.#page = page;
    this.#entry = entry;
    const act = (action: Action) => page.act(action, this.#entry.id, this.#ranks.selected);
    this.#pages = new PageLinks(tools.trans, 'jsky-card-pages');
    this.#actions = new ActionBar(tools, act);
    this.#ranks = new Ranks(tools.trans, entry.id, page.follow, act, page.ask(entry.id));
    this.#body = element('div', 'jsky-card-body', {}, this.#actions.element, this.#ranks.element);
    this.#opener = element('button', 'jsky-opener', { type: 'button' });
    this.#opener.append(this.#caret, this.#dot, this.#name);
    this.#opener.addEventListener('click', () => {
      this.open = !this.#open;
    });
    this.#stop = actionButton(tools, 'interrupt', act);
    this.#start = actionButton(tools, 'start', act);
    const down = actionButton(tools, 'down', act);
    down.classList.add('jsky-card-down');
    this.element = element(
      'li',
      'jsky-card',
      {},
      element('div', 'jsky-card-head', {}, this.#opener, this.#stop, this.#start, down),
      element(
        'div',
        'jsky-card-facts',
        {},
        element('div', 'jsky-card-first', {}, this.#state, this.#made),
        this.#cost,
        element('div', 'jsky-card-users', {}, this.#users, this.#pages.element, this.#up)
      ),
      element('div', 'jsky-card-said', {}, this.#end, this.#doing, this.#note),
      this.#body
    );
    this.element.addEventListener('keydown', ({ key, target }) => {
      if (key === 'Escape' && this.#body.contains(target as Node)) {
        this.#opener.focus();
      }
    });
    this.open = false;
  }

  get open(): boolean {
    return this.#open;
  }

  set open(open: boolean) {
    this.#open = open;
    setAttribute(this.#opener, 'aria-expanded', String(open));
    setAttribute(this.element, 'data-open', open ? '' : null);
    this.#caret.replaceChildren(this.#tools.icon(open ? 'expanded' : 'collapsed'));
    setShown(this.#body, open);
    this.#showStop();
    this.#ranks.show(open ? this.#entry : null);
  }

  /** Shows the state of the cluster; `now` is in seconds since the epoch. */
  show(entry: Entry, now: number): void {
    this.#entry = entry;
    const { trans } = this.#tools;
    const name = plain(entry.name);
    setName(this.#name, name);
    setAttribute(this.#opener, 'title', name);
    setAttribute(this.#opener, 'aria-label', name);
    setAttribute(this.#dot, 'data-phase', entry.state);
    setText(this.#state, stateWord(trans, entry.state));
    const made = madeOf(trans, entry);
    setText(this.#made, made && ` · ${made}`);
    this.#showUsers();
    this.#showPages();
    setOptional(this.#cost, costOf(trans, entry));
    setOptional(this.#up, upOf(trans, entry, now));
    const end = endOf(trans, entry);
    setOptional(this.#end, end && end.text);
    setAttribute(this.#end, 'data-soon', end?.soon ? '' : null);
    setSentence(this.#doing, doingOf(entry));
    setSentence(this.#note, entry.note);
    // What a start is at is no warning.
    setAttribute(this.#note, 'data-quiet', entry.state === 'starting' ? '' : null);
    this.#showStop();
    setShown(this.#start, isPossible('start', entry));
    this.#actions.show(entry);
    if (this.#open) {
      this.#ranks.show(entry);
    }
  }

  release(): void {
    this.#ranks.show(null);
  }

  /** The view of an opened card has a Stop of its own, unless it is a run that no kernel tells of, as that
      of a terminal. */
  #showStop(): void {
    const { state, snapshot } = this.#entry;
    const isInView = this.#open && snapshot?.run && !isOver(snapshot);
    setShown(this.#stop, state === 'running' && !isInView);
  }

  #showUsers(): void {
    const { kernels } = this.#entry;
    // Compared as text, so that unchanged elements keep the focus.
    const shown = JSON.stringify(kernels.map(({ notebook, path, busy }) => [notebook, path, busy]));
    if (this.#usersShown === shown) {
      return;
    }
    this.#usersShown = shown;
    this.#users.replaceChildren(...kernels.map((kernel) => this.#user(kernel)));
    setShown(this.#users, kernels.length > 0);
  }

  /** A kernel forwards them: without one there is no way. */
  #showPages(): void {
    const { snapshot, kernels } = this.#entry;
    const pages = kernels.length > 0 ? (snapshot?.cluster.pages ?? []) : [];
    this.#pages.show(pages, (path) => this.#page.address(path));
  }

  #user({ notebook, path, busy }: Entry['kernels'][number]): HTMLElement {
    const { trans, icon } = this.#tools;
    const name = plain(notebook);
    const busyness = busy ? trans.__('its kernel is busy') : trans.__('its kernel is idle');
    const title = `${path === null ? name : plain(path)} (${busyness})`;
    const shown = element('span', 'jsky-file');
    setName(shown, name);
    if (path === null) {
      return element('span', 'jsky-user', { title }, icon('notebook'), shown);
    }
    const label = trans.__('Go to %1', title);
    const link = element('button', 'jsky-user jsky-link', {
      type: 'button',
      'aria-label': label,
      title: label
    });
    link.append(icon('notebook'), shown);
    link.addEventListener('click', () => this.#page.go(path));
    return link;
  }
}
