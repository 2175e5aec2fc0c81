import assert from 'node:assert/strict';
import { beforeEach, mock, test } from 'node:test';
import type { Offers } from '../src/api.ts';
import { NewCluster, type Wanted } from '../src/sidebar/form.ts';
import { document, Event, KeyboardEvent, place, texts, textOf, tools } from './page.ts';

const LOCAL = { provider: 'local', description: 'this machine', gpu: null, price: null, line: '--nodes 2' };
const SPOT = {
  provider: 'aws',
  description: 'g6.xlarge, spot',
  gpu: 'L4',
  price: 0.62,
  line: '--provider aws --nodes 2 --gpu L4 --spot'
};

let asked: Wanted[];
let inserted: unknown[];
let answers: ((found: Offers) => void)[];
let closed: number;
let host: HTMLElement;

beforeEach(() => {
  document.body.replaceChildren();
  [asked, inserted, answers, closed] = [[], [], [], 0];
  const form = new NewCluster(
    tools,
    {
      offers: (wanted) => {
        asked.push(wanted);
        return new Promise((answer) => answers.push(answer));
      },
      insert: (...what) => inserted.push(what)
    },
    () => void closed++
  );
  host = place();
  host.append(form.element);
  form.open({ provider: '', nodes: 2, gpu: '' });
});

const settled = () => new Promise((resolve) => setImmediate(resolve));
const field = <E extends HTMLElement>(name: string) =>
  [...host.querySelectorAll('label')]
    .find((label) => label.firstElementChild!.textContent === name)!
    .querySelector<E>('input, select')!;
const button = (text: string) =>
  [...host.querySelectorAll('button')].find((each) => each.textContent === text)!;

async function answer(offers: Offers): Promise<void> {
  answers.at(-1)!(offers);
  await settled();
}

test('offers are shown with their price, and the chosen one goes into the notebook', async () => {
  assert.ok(button('New cell').disabled);
  await answer({ offers: [LOCAL, SPOT], notes: ['Use `--hosts` for ssh.'] });
  assert.deepEqual(texts(host, '.jsky-offer'), ['this machinelocal', 'g6.xlarge, spotaws · $0.62 an hour']);
  assert.equal(textOf(host, '.jsky-form-notes'), 'Use --hosts for ssh.');
  assert.equal(textOf(host, '.jsky-form-line'), '%sky up --nodes 2');
  host.querySelectorAll<HTMLElement>('.jsky-offer')[1]!.click();
  assert.equal(textOf(host, '.jsky-form-line'), `%sky up ${SPOT.line}`);
  button('New cell').click();
  button('This cell').click();
  assert.deepEqual(inserted, [
    [SPOT.line, 'cell'],
    [SPOT.line, 'above']
  ]);
});

test('what is chosen is asked for, and of two answers the later question counts', async () => {
  await answer({ offers: [LOCAL, SPOT], notes: [] });
  const gpu = field<HTMLSelectElement>('GPU');
  assert.deepEqual([...gpu.options].map(({ value }) => value), ['', 'L4']);
  gpu.value = 'L4';
  gpu.dispatchEvent(new Event('change'));
  const provider = field<HTMLSelectElement>('Provider');
  provider.value = 'aws';
  provider.dispatchEvent(new Event('change'));
  assert.deepEqual(asked.slice(1), [
    { provider: '', nodes: 2, gpu: 'L4' },
    { provider: 'aws', nodes: 2, gpu: 'L4' }
  ]);
  answers[2]!({ offers: [SPOT], notes: [] });
  answers[1]!({ offers: [LOCAL], notes: [] });
  await settled();
  assert.equal(textOf(host, '.jsky-form-line'), `%sky up ${SPOT.line}`);
});

test('while a number is typed nothing is asked, and one that is none says so', (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  const nodes = field<HTMLInputElement>('Nodes');
  for (const typed of ['1', '16']) {
    nodes.value = typed;
    nodes.dispatchEvent(new Event('input', { bubbles: true }));
  }
  assert.equal(asked.length, 1);
  mock.timers.tick(300);
  assert.deepEqual(asked.at(-1), { provider: '', nodes: 16, gpu: '' });
  nodes.value = '0';
  nodes.dispatchEvent(new Event('input', { bubbles: true }));
  mock.timers.tick(300);
  assert.equal(asked.length, 2);
  assert.match(textOf(host, '.jsky-form-notes'), /number from 1 on/);
  assert.ok(button('New cell').disabled);
});

test('Escape closes it', () => {
  host.querySelector('form')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
  assert.equal(closed, 1);
});
