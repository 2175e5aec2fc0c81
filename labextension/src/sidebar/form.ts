/* "New cluster": a form for what it is made of, offers with prices, and the line that starts it. The
   line goes into the notebook, where the user sees it, can change it, and runs it. */

import type { Offers } from '../api.ts';
import { element, setOptional } from '../dom.ts';
import { plain } from '../text.ts';
import { iconButton, wordButton } from './button.ts';
import { Choice } from './choice.ts';
import { OfferList } from './offers.ts';
import { setSentence } from './sentence.ts';
import type { Tools } from './tools.ts';

/** What is asked for; an empty text means any. */
export interface Wanted {
  provider: string;
  nodes: number;
  gpu: string;
}

/** Where the line goes: into a cell of its own, or above the code of the present one. */
export type Place = 'cell' | 'above';

/** What the form asks of the page. */
export interface Desk {
  offers(wanted: Wanted): Promise<Offers>;
  insert(line: string, place: Place): void;
}

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
  readonly #offers: OfferList;
  readonly #notes = element('div', 'jsky-form-notes jsky-quiet', { role: 'status' });
  readonly #line = element('code', 'jsky-form-line');
  readonly #insert: HTMLButtonElement;
  readonly #above: HTMLButtonElement;
  #asked = 0;
  #later: ReturnType<typeof setTimeout> | undefined;

  constructor(tools: Tools, desk: Desk, close: () => void) {
    const { trans } = tools;
    this.#tools = tools;
    this.#desk = desk;
    const ask = () => this.#ask();
    this.#provider = new Choice(tools, trans.__('Provider'), ask);
    this.#provider.add('', trans.__('any'));
    this.#gpu = new Choice(tools, trans.__('GPU'), ask);
    this.#gpu.add('', trans.__('any or none'));
    this.#nodes.addEventListener('input', () => {
      clearTimeout(this.#later);
      this.#later = setTimeout(ask, 300);
    });
    this.#offers = new OfferList(trans, () => this.#showLine());
    this.#insert = wordButton(trans.__('New cell'), true, () => this.#put('cell'));
    this.#above = wordButton(trans.__('This cell'), false, () => this.#put('above'));
    this.element = element(
      'form',
      'jsky-form',
      { 'aria-label': trans.__('New cluster') },
      element(
        'div',
        'jsky-form-head',
        {},
        element('span', 'jsky-name', {}, trans.__('New cluster')),
        iconButton(tools, 'close', trans.__('Close'), close)
      ),
      element(
        'div',
        'jsky-form-fields',
        {},
        field(trans.__('Nodes'), this.#nodes),
        field(trans.__('GPU'), this.#gpu.element),
        field(trans.__('Provider'), this.#provider.element)
      ),
      this.#offers.element,
      this.#notes,
      this.#line,
      element(
        'div',
        'jsky-form-buttons',
        { role: 'group', 'aria-label': trans.__('Write it into') },
        element('span', 'jsky-quiet', {}, trans.__('Write it into')),
        this.#above,
        this.#insert
      )
    );
    this.element.addEventListener('submit', (event) => event.preventDefault());
    this.element.addEventListener('keydown', ({ key }) => key === 'Escape' && close());
    this.#showLine();
  }

  /** Shows the form with the user's defaults for a new cluster. */
  open(wanted: Wanted): void {
    this.#nodes.value = String(wanted.nodes);
    this.#provider.choose(wanted.provider);
    this.#gpu.choose(wanted.gpu);
    this.#ask();
    this.#nodes.focus();
  }

  #ask(): void {
    const nodes = Number(this.#nodes.value);
    if (!Number.isInteger(nodes) || nodes < 1) {
      this.#show({ offers: [], notes: [this.#tools.trans.__('Nodes is a number from 1 on.')] });
      return;
    }
    const asked = ++this.#asked;
    const wanted = { provider: this.#provider.value, nodes, gpu: this.#gpu.value };
    const show = (found: Offers) => asked === this.#asked && this.#show(found);
    this.#desk.offers(wanted).then(show, (trouble: Error) =>
      show({ offers: [], notes: [trouble.message] })
    );
  }

  #show({ offers, notes }: Offers): void {
    this.#provider.offer(offers.map(({ provider }) => provider));
    this.#gpu.offer(offers.flatMap(({ gpu }) => gpu ?? []));
    this.#offers.show(offers);
    this.#notes.replaceChildren(
      ...notes.map((note) => {
        const line = element('div', '');
        setSentence(line, note);
        return line;
      })
    );
    this.#showLine();
  }

  #showLine(): void {
    const offer = this.#offers.chosen;
    setOptional(this.#line, offer && `%sky up ${plain(offer.line)}`);
    this.#insert.disabled = this.#above.disabled = !offer;
  }

  #put(place: Place): void {
    const offer = this.#offers.chosen;
    if (offer) {
      this.#desk.insert(plain(offer.line), place);
    }
  }
}

function field(name: string, input: HTMLElement): HTMLElement {
  return element('label', 'jsky-field', {}, element('span', '', {}, name), input);
}
