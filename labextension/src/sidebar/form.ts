/* "New cluster": a form for what it is made of, offers with prices, and the line that starts it. The
   line goes into the notebook, where the user sees it, and can change it and run it again. */

import type { Offers } from '../api.ts';
import { element, setAttribute, setShown, setText } from '../dom.ts';
import { plain } from '../text.ts';
import { iconButton, wordButton } from './button.ts';
import { Choice } from './choice.ts';
import { NAME } from './facts.ts';
import { OfferList } from './offers.ts';
import { setSentence } from '../sentence.ts';
import type { Tools } from './tools.ts';

/** The request; an empty text means any. */
export interface Wanted {
  provider: string;
  nodes: number;
  gpu: string;
}

/** Where the line goes: into a cell of its own, which is run at once or not, or above the code of the
    present cell. */
export type Place = 'start' | 'cell' | 'above';

/** What the form needs from the page. */
export interface Desk {
  offers(wanted: Wanted): Promise<Offers>;
  insert(line: string, place: Place): void;
}

/** Milliseconds without a key press after which offers are requested. */
const PAUSE = 300;

export class NewCluster {
  readonly element: HTMLElement;
  readonly #tools: Tools;
  readonly #desk: Desk;
  readonly #provider: Choice;
  readonly #gpu: Choice;
  readonly #nodes = element('input', 'jp-mod-styled', {
    type: 'number',
    min: '1',
    max: '1000'
  }) as HTMLInputElement;
  readonly #name = element('input', 'jp-mod-styled', {
    type: 'text',
    autocomplete: 'off',
    spellcheck: 'false'
  }) as HTMLInputElement;
  readonly #offers: OfferList;
  readonly #notes = element('div', 'jsky-form-notes jsky-quiet', { role: 'status' });
  readonly #missing = element('summary', '');
  readonly #reasons = element('details', 'jsky-form-missing jsky-quiet', {}, this.#missing);
  readonly #line = element('code', 'jsky-form-line');
  readonly #where = element('div', 'jsky-quiet');
  readonly #buttons: readonly HTMLButtonElement[];
  readonly #onClose: () => void;
  /** The name of the cluster if none is typed; empty if it is the notebook's own. */
  #suggested = '';
  /** What had the focus when the form was opened, and gets it back. */
  #before: HTMLElement | null = null;
  #later: ReturnType<typeof setTimeout> | undefined;
  /** The offers for the input; null until they were requested. */
  #asking: Promise<void> | null = null;
  /** Those that a pressed button waits for: to press again while they load asks for nothing more. */
  #awaited: Promise<void> | null = null;
  /** What the last pressed button asks for. */
  #place: Place = 'cell';

  constructor(tools: Tools, desk: Desk, close: () => void) {
    const { trans } = tools;
    this.#tools = tools;
    this.#desk = desk;
    this.#onClose = close;
    const changed = () => this.#onChange();
    this.#provider = new Choice(tools, trans.__('Provider'), changed);
    this.#provider.add('', trans.__('any'));
    this.#gpu = new Choice(tools, trans.__('GPU'), changed);
    this.#gpu.add('', trans.__('any or none'));
    this.#nodes.addEventListener('input', () => this.#onChange(PAUSE));
    this.#name.addEventListener('input', () => this.#onNamed());
    this.#offers = new OfferList(trans, () => this.#showLine());
    const start = wordButton(trans.__('Start'), true, () => {});
    start.type = 'submit';
    const cell = wordButton(trans.__('New cell'), false, () => void this.#put('cell'));
    const above = wordButton(trans.__('This cell'), false, () => void this.#put('above'));
    this.#buttons = [start, cell, above];
    this.element = element(
      'form',
      'jsky-form',
      { 'aria-label': trans.__('New cluster'), novalidate: '' },
      element(
        'div',
        'jsky-form-head',
        {},
        element('span', 'jsky-name', {}, trans.__('New cluster')),
        iconButton(tools, 'close', trans.__('Close'), () => this.#close())
      ),
      element(
        'div',
        'jsky-form-fields',
        {},
        field(trans.__('Nodes'), this.#nodes),
        field(trans.__('GPU'), this.#gpu.element),
        field(trans.__('Provider'), this.#provider.element),
        field(trans.__('Name'), this.#name)
      ),
      element(
        'div',
        'jsky-form-found',
        {},
        this.#offers.element,
        this.#notes,
        this.#reasons,
        this.#line
      ),
      this.#where,
      start,
      element(
        'div',
        'jsky-form-buttons',
        { role: 'group', 'aria-label': trans.__('Only insert the line into') },
        element('span', 'jsky-quiet', {}, trans.__('Only insert the line into')),
        cell,
        above
      )
    );
    this.element.addEventListener('submit', (event) => {
      event.preventDefault();
      void this.#put('start');
    });
    this.element.addEventListener('keydown', ({ key }) => key === 'Escape' && this.#close());
    setShown(this.#reasons, false);
    this.#showLine();
  }

  /** Shows the form with the user's defaults for a new cluster. */
  open(wanted: Wanted): void {
    const { activeElement } = this.element.ownerDocument;
    if (!this.element.contains(activeElement)) {
      this.#before = activeElement as HTMLElement | null;
    }
    this.#name.value = '';
    this.#nodes.value = String(wanted.nodes);
    this.#provider.choose(wanted.provider);
    this.#gpu.choose(wanted.gpu);
    this.#onChange();
    this.#nodes.focus();
    this.#nodes.select();
  }

  #close(): void {
    this.#onClose();
    this.#before?.focus();
  }

  /** Says in which notebook it starts, where null is a new one, and under which name unless one is
      typed: an empty one is the notebook's own. */
  startsIn(notebook: string | null, suggested: string): void {
    const { trans } = this.#tools;
    this.#suggested = plain(suggested);
    this.#name.placeholder = this.#suggested || trans.__("the notebook's own");
    this.#sayLine();
    setText(
      this.#where,
      notebook ? trans.__('It starts in %1.', plain(notebook)) : trans.__('It starts in a new notebook.')
    );
  }

  /** What is wrong with the input; null if nothing is. */
  get #fault(): string | null {
    const { trans } = this.#tools;
    const nodes = Number(this.#nodes.value);
    if (!Number.isInteger(nodes) || nodes < 1) {
      return trans.__('Nodes must be a whole number of 1 or more.');
    }
    const name = this.#name.value.trim();
    return name === '' || NAME.test(name)
      ? null
      : trans.__(
          'A name has at most 63 letters without accents, digits, ".", "_" and "-", and begins with a letter or a digit.'
        );
  }

  /** The input; null if it is invalid. */
  get #wanted(): Wanted | null {
    return this.#fault === null
      ? { provider: this.#provider.value, nodes: Number(this.#nodes.value), gpu: this.#gpu.value }
      : null;
  }

  /** What starts the chosen nodes under the typed name; null if there is nothing to choose. */
  get #words(): string | null {
    const offer = this.#offers.chosen;
    const name = this.#name.value.trim() || this.#suggested;
    return offer && plain(offer.line) + (name && ` --cluster ${name}`);
  }

  /** What is offered is the same under any name. */
  #onNamed(): void {
    if (this.#fault === null && this.#asking) {
      this.#showLine();
    } else {
      this.#onChange(PAUSE);
    }
  }

  #onChange(pause = 0): void {
    clearTimeout(this.#later);
    this.#asking = null;
    const fault = this.#fault;
    if (fault !== null) {
      this.#show({ offers: [], notes: [fault], providers: [] });
    } else if (pause) {
      // The shown offers are for the previous input; a button waits for the right ones.
      this.#setBusy();
      this.#later = setTimeout(() => void this.#ask(), pause);
    } else {
      void this.#ask();
    }
  }

  /** Requests offers for the input, once; resolves when they are shown. */
  #ask(): Promise<void> {
    clearTimeout(this.#later);
    const wanted = this.#wanted;
    if (!this.#asking && wanted) {
      this.#setBusy();
      const asking = this.#desk
        .offers(wanted)
        .catch(({ message }: Error): Offers => ({ offers: [], notes: [message], providers: [] }))
        .then((found) => {
          if (this.#asking === asking) {
            this.#show(found);
          }
        });
      this.#asking = asking;
    }
    return this.#asking ?? Promise.resolve();
  }

  #setBusy(): void {
    this.#enable(true);
    setAttribute(this.element, 'aria-busy', 'true');
    if (!this.#offers.chosen) {
      setText(this.#notes, this.#tools.trans.__('Looking for nodes…'));
      setShown(this.#notes, true);
    }
  }

  #show({ offers, notes, providers }: Offers): void {
    this.#provider.offer(providers);
    this.#gpu.offer(offers.flatMap(({ gpu }) => gpu ?? []));
    this.#offers.show(offers);
    this.#showNotes(notes, offers.length > 0 ? providers : []);
    setAttribute(this.element, 'aria-busy', null);
    this.#showLine();
  }

  /** Shows what there is to say; why some of `providers` have nothing is behind their names, beside
      what others have. */
  #showNotes(notes: readonly string[], providers: readonly string[]): void {
    const missing = providers.filter((name) => notes.some((note) => note.startsWith(`${name}: `)));
    const isReason = (note: string) => missing.some((name) => note.startsWith(`${name}: `));
    this.#notes.replaceChildren(...notes.filter((note) => !isReason(note)).map(sentence));
    setShown(this.#notes, this.#notes.hasChildNodes());
    const { trans } = this.#tools;
    setText(this.#missing, trans.__('Not available: %1', missing.map(plain).join(', ')));
    this.#reasons.replaceChildren(this.#missing, ...notes.filter(isReason).map(sentence));
    setShown(this.#reasons, missing.length > 0);
  }

  #showLine(): void {
    this.#sayLine();
    this.#enable(this.#words !== null);
  }

  #sayLine(): void {
    const words = this.#words;
    setShown(this.#line, words !== null);
    const line = words === null ? '' : `%sky up ${words}`;
    if (this.#line.textContent !== line) {
      // Where it is broken, no dashes are left behind: each word is whole.
      const parts = line.split(/( )/).map((part) => (part === ' ' ? part : element('span', '', {}, part)));
      this.#line.replaceChildren(...parts);
    }
  }

  #enable(enabled: boolean): void {
    for (const button of this.#buttons) {
      button.disabled = !enabled;
    }
  }

  async #put(place: Place): Promise<void> {
    this.#place = place;
    const asking = this.#ask();
    if (asking === this.#awaited) {
      return;
    }
    this.#awaited = asking;
    try {
      await asking;
    } finally {
      if (asking === this.#awaited) {
        this.#awaited = null;
      }
    }
    const words = this.#words;
    // If the user continues to type, earlier input no longer counts.
    if (words !== null && asking === this.#asking) {
      this.#desk.insert(words, this.#place);
    }
  }
}

function sentence(text: string): HTMLElement {
  const line = element('div', '');
  setSentence(line, text);
  return line;
}

function field(name: string, input: HTMLElement): HTMLElement {
  return element('label', 'jsky-field', {}, element('span', '', {}, name), input);
}
