import assert from 'node:assert/strict';
import { test } from 'node:test';
import panel, { type Model } from '../src/panel.ts';
import { CHANGED } from '../src/panel.ts';
import { document, place, sample, settled, texts, textOf } from './page.ts';

type Told = 'change' | 'msg:custom';

/** A model as anywidget hands it over, with the parts that the kernel sends. */
class Parts implements Model {
  readonly sent: unknown[] = [];
  widget_manager?: Model['widget_manager'];
  #parts: Record<string, unknown>;
  #changed = new Set<() => void>();
  #hearing = new Set<(content?: any) => void>();

  constructor() {
    const { ranks, output, ...parts } = sample();
    const numbered = Object.fromEntries(
      ranks.flatMap(({ utilisation, memory, line, progress, ...rest }, at) => [
        [`rank_${at}`, rest],
        [`use_${at}`, { utilisation, memory, line, progress }]
      ])
    );
    const lines = output.text.split('\n');
    const more = { drop: 0, keep: lines.length, added: [] };
    this.#parts = { ...parts, ...numbered, size: ranks.length, output: { rank: 2, lines }, more };
  }

  get = (name: string): any => this.#parts[name];
  send = (content: unknown) => void this.sent.push(content);
  on = (event: Told, heard: (content?: any) => void) =>
    void (event === 'change' ? this.#changed : this.#hearing).add(heard);
  off = (event: Told, heard: (content?: any) => void) =>
    void (event === 'change' ? this.#changed : this.#hearing).delete(heard);

  receive(parts: Record<string, unknown>): void {
    Object.assign(this.#parts, parts);
    this.#changed.forEach((changed) => changed());
  }

  hear(content: unknown): void {
    this.#hearing.forEach((heard) => heard(content));
  }

  get watched(): boolean {
    return this.#changed.size + this.#hearing.size > 0;
  }
}

function shown(model: Parts): [HTMLElement, () => void] {
  const el = place();
  return [el, panel.render({ model, el })];
}

test('parts are put together and followed', (t) => {
  const model = new Parts();
  const [el, end] = shown(model);
  t.after(end);
  assert.equal(texts(el, '[role=option]').length, 4);
  model.receive({ use_1: { ...model.get('use_1'), line: 'next' } });
  assert.equal(textOf(el, '[data-rank="1"] .jsky-line'), 'next');
  el.querySelector<HTMLElement>('[data-rank="2"]')!.click();
  model.receive({ more: { drop: 1, keep: 1, added: ['three', ''] } });
  assert.deepEqual(texts(el, '.jsky-text-line'), ['two', 'three']);
});

test('what the user does goes to the kernel', (t) => {
  const model = new Parts();
  const [el, end] = shown(model);
  t.after(end);
  el.querySelector<HTMLElement>('[data-rank="2"]')!.click();
  el.querySelector<HTMLElement>('.jsky-stop')!.click();
  assert.deepEqual(model.sent, [
    { kind: 'select', run: 'r1', rank: 2 },
    { kind: 'stop', run: 'r1' }
  ]);
});

test('where the page can interrupt the kernel, Stop does that', (t) => {
  const model = new Parts();
  let interrupts = 0;
  model.widget_manager = { kernel: { interrupt: async () => void interrupts++ } };
  const [el, end] = shown(model);
  t.after(end);
  el.querySelector<HTMLElement>('.jsky-stop')!.click();
  assert.equal(interrupts, 1);
  assert.deepEqual(model.sent, []);
});

test('a run in the background is stopped without disturbing the kernel', (t) => {
  const model = new Parts();
  model.widget_manager = { kernel: { interrupt: async () => assert.fail('interrupted') } };
  model.receive({ run: { ...model.get('run'), background: true } });
  const [el, end] = shown(model);
  t.after(end);
  el.querySelector<HTMLElement>('.jsky-stop')!.click();
  assert.deepEqual(model.sent, [{ kind: 'stop', run: 'r1' }]);
});

test('where the page has a way beside a busy cell, requests take it', (t) => {
  const model = new Parts();
  const sent: any[] = [];
  const sendControlMessage = (message: unknown) => void sent.push(message);
  model.widget_manager = { kernel: { clientId: 'c1', sendControlMessage } };
  const [el, end] = shown(model);
  t.after(end);
  el.querySelector<HTMLElement>('[data-rank="2"]')!.click();
  assert.deepEqual(model.sent, []);
  const [{ channel, header, content }] = sent;
  assert.deepEqual([channel, header.msg_type, header.session], ['control', 'sky_request', 'c1']);
  assert.deepEqual(content, { kind: 'select', run: 'r1', rank: 2 });
});

test('two views of one model, and the end of one', () => {
  const model = new Parts();
  const [, end] = shown(model);
  const [second, endSecond] = shown(model);
  end();
  model.receive({ sent_bytes: 5e6 });
  assert.match(textOf(second, '.jsky-run-facts'), /5 MB sent/);
  endSecond();
  assert.ok(!model.watched);
});

test('the extension of the page is told of each change, also where nothing shows the widget', () => {
  const model = new Parts();
  const heard: any[] = [];
  const listener = (event: Event) => heard.push((event as CustomEvent).detail);
  document.addEventListener(CHANGED, listener);
  const end = panel.initialize({ model });
  model.receive({ use_1: { ...model.get('use_1'), line: 'next' } });
  assert.deepEqual(heard.map(({ ranks }) => ranks[1].line), ['line of 1', 'next']);
  end();
  assert.ok(!model.watched);
  document.removeEventListener(CHANGED, listener);
});

test('a question goes to the kernel, and its answer comes back by its number', async (t) => {
  const model = new Parts();
  const [el, end] = shown(model);
  t.after(end);
  const button = [...el.querySelectorAll<HTMLElement>('.jsky-more button')].find(
    ({ textContent }) => textContent === 'Variables'
  )!;
  button.click();
  const { number, ...asked } = model.sent.at(-1) as { number: string };
  assert.deepEqual(asked, { kind: 'ask', cluster: 'c1', question: { about: 'variables' } });
  const answer = { head: ['name', 'ranks'], rows: [{ cells: ['x', '0-3'], differs: false }], notes: [] };
  model.hear({ kind: 'answer', number: 'of another', answer: null, trouble: 'no' });
  model.hear({ kind: 'answer', number, answer });
  await settled();
  assert.deepEqual(texts(el, '.jsky-variables tbody tr > *'), ['x', '0-3']);
  button.click();
  button.click();
  model.hear({ ...(model.sent.at(-1) as object), kind: 'answer', trouble: 'it is lost' });
  await settled();
  assert.equal(textOf(el, '.jsky-more-part:not([hidden])'), 'it is lost');
});
