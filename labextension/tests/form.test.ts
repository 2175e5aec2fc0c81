import assert from 'node:assert/strict';
import { beforeEach, mock, test } from 'node:test';
import type { Offer, Offers } from '../src/api.ts';
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
let form: NewCluster;

beforeEach(() => {
  document.body.replaceChildren();
  [asked, inserted, answers, closed] = [[], [], [], 0];
  // Forms of former tests may still ask, after a pause in what was typed: not for this test.
  const own = { asked, inserted, answers };
  form = new NewCluster(
    tools,
    {
      offers: (wanted) => {
        own.asked.push(wanted);
        return new Promise((answer) => own.answers.push(answer));
      },
      insert: (...what) => own.inserted.push(what)
    },
    () => void closed++
  );
  host = place();
  host.append(form.element);
  form.startsIn('train.ipynb', '');
  form.open({ provider: '', nodes: 2, gpu: '' });
});

const settled = () => new Promise((resolve) => setImmediate(resolve));
const field = <E extends HTMLElement>(name: string) =>
  [...host.querySelectorAll('label')]
    .find((label) => label.firstElementChild!.textContent === name)!
    .querySelector<E>('input, select')!;
const button = (text: string) =>
  [...host.querySelectorAll('button')].find((each) => each.textContent === text)!;

/** Types into a field, by default the number of nodes. */
function type(text: string, name = 'Nodes'): void {
  const input = field<HTMLInputElement>(name);
  input.value = text;
  input.dispatchEvent(new Event('input', { bubbles: true }));
}

/** Presses Enter in a field. */
function submit(): void {
  host.querySelector('form')!.requestSubmit();
}

const found = (offers: Offer[], notes: string[] = []): Offers => ({
  offers,
  notes,
  providers: ['local', 'aws', 'slurm']
});

async function answer(...answered: Parameters<typeof found>): Promise<void> {
  answers.at(-1)!(found(...answered));
  await settled();
}

test('until offers are there, the form says what it waits for, and nothing else', async () => {
  const seen = () => [...host.querySelectorAll<HTMLElement>('details, .jsky-form-notes')].filter(({ hidden }) => !hidden);
  assert.deepEqual(seen().map(({ textContent }) => textContent), ['Looking for nodes…']);
  await answer([LOCAL]);
  assert.deepEqual(seen(), []);
  type('3');
  assert.deepEqual(seen(), [], 'the offers before are still shown');
});

test('who closes the form is where it was opened', () => {
  const opener = document.body.appendChild(document.createElement('button'));
  opener.focus();
  const form = new NewCluster(tools, { offers: () => new Promise(() => {}), insert: () => {} }, () => void closed++);
  host.append(form.element);
  form.open({ provider: '', nodes: 2, gpu: '' });
  assert.equal(document.activeElement, form.element.querySelector('input'));
  form.open({ provider: '', nodes: 3, gpu: '' });
  document.activeElement!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
  assert.equal(closed, 1);
  assert.equal(document.activeElement, opener);
});

test('offers are shown with their price, and the chosen one goes into the notebook', async () => {
  await answer([LOCAL, SPOT], ['Use `--hosts` for ssh.']);
  assert.deepEqual(texts(host, '.jsky-offer'), ['this machinelocal', 'g6.xlarge, spotaws · $0.62 an hour']);
  assert.equal(textOf(host, '.jsky-form-notes'), 'Use --hosts for ssh.');
  assert.equal(textOf(host, '.jsky-form-line'), '%sky up --nodes 2');
  assert.deepEqual(texts(host, '.jsky-form-line > span'), ['%sky', 'up', '--nodes', '2']);
  host.querySelectorAll<HTMLElement>('.jsky-offer')[1]!.click();
  assert.equal(textOf(host, '.jsky-form-line'), `%sky up ${SPOT.line}`);
  for (const label of ['Start', 'New cell', 'This cell']) {
    button(label).click();
    await settled();
  }
  assert.deepEqual(inserted, [
    [SPOT.line, 'start'],
    [SPOT.line, 'cell'],
    [SPOT.line, 'above']
  ]);
});

test('a notebook that has a cluster gets a second one, under a name that is free or typed', async () => {
  form.startsIn('train.ipynb', 'train-2');
  await answer([LOCAL]);
  const shown = () => textOf(host, '.jsky-form-line');
  assert.equal(field<HTMLInputElement>('Name').placeholder, 'train-2');
  assert.equal(shown(), '%sky up --nodes 2 --cluster train-2');
  type(' sweep ', 'Name');
  assert.equal(shown(), '%sky up --nodes 2 --cluster sweep');
  type('my sweep', 'Name');
  assert.match(textOf(host, '.jsky-form-notes'), /^A name has at most 63 letters/);
  assert.ok(button('Start').disabled);
  type('eval', 'Name');
  assert.equal(asked.length, 1, 'names are no reason to look for nodes');
  submit();
  await answer([LOCAL]);
  assert.deepEqual(inserted, [['--nodes 2 --cluster eval', 'start']]);
});

test('what is chosen is asked for, and of two answers the later question counts', async () => {
  await answer([LOCAL, SPOT]);
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
  answers[2]!(found([SPOT]));
  answers[1]!(found([LOCAL]));
  await settled();
  assert.equal(textOf(host, '.jsky-form-line'), `%sky up ${SPOT.line}`);
});

test('what is typed is what starts, however soon the button follows', async () => {
  await answer([LOCAL, SPOT]);
  host.querySelectorAll<HTMLElement>('.jsky-offer')[1]!.click();
  type('3');
  assert.equal(button('Start').disabled, false);
  submit();
  await settled();
  assert.deepEqual(inserted, [], 'what is offered for three nodes is not known yet');
  assert.deepEqual(asked.at(-1), { provider: '', nodes: 3, gpu: '' });
  const three = { ...SPOT, price: 0.93, line: SPOT.line.replace('2', '3') };
  await answer([{ ...LOCAL, line: '--nodes 3' }, three]);
  assert.deepEqual(inserted, [[three.line, 'start']], 'of the kind that was chosen');
});

test('a button that is pressed twice while offers load starts once', async () => {
  submit();
  button('Start').click();
  await settled();
  type('3');
  submit();
  submit();
  answers[0]!(found([LOCAL]));
  const three = { ...LOCAL, line: '--nodes 3' };
  await answer([three]);
  assert.deepEqual(inserted, [[three.line, 'start']]);
  submit();
  await settled();
  assert.equal(inserted.length, 2, 'who opens the form again starts another one');
  type('4');
  button('New cell').click();
  submit();
  await answer([{ ...LOCAL, line: '--nodes 4' }]);
  assert.deepEqual(inserted.slice(2), [['--nodes 4', 'start']], 'what was pressed last');
});

test('while a number is typed nothing is asked, and nothing can be started with a wrong one', (t) => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  type('1');
  type('16');
  assert.equal(asked.length, 1);
  mock.timers.tick(300);
  assert.deepEqual(asked.at(-1), { provider: '', nodes: 16, gpu: '' });
  for (const wrong of ['0', '', '2.5']) {
    type(wrong);
    assert.match(textOf(host, '.jsky-form-notes'), /whole number of 1 or more/);
    for (const label of ['Start', 'New cell', 'This cell']) {
      assert.ok(button(label).disabled, label);
    }
    submit();
  }
  mock.timers.tick(300);
  assert.equal(asked.length, 2);
  assert.deepEqual(inserted, []);
});

test('what is free of a partition changes, and it stays chosen', async () => {
  const partition = (name: string, idle: number, nodes: number) => ({
    provider: 'slurm',
    description: `${name}: 64 CPUs, ${idle} of 8 nodes idle`,
    gpu: null,
    price: null,
    line: `--nodes ${nodes} --provider slurm --partition ${name}`
  });
  await answer([LOCAL, partition('main', 4, 2), partition('long', 2, 2)]);
  assert.equal(texts(host, '.jsky-offer')[2], 'long: 64 CPUs, 2 of 8 nodes idleslurm');
  host.querySelectorAll<HTMLElement>('.jsky-offer')[2]!.click();
  type('3');
  submit();
  const long = partition('long', 0, 3);
  await answer([{ ...LOCAL, line: '--nodes 3' }, partition('main', 5, 3), long]);
  assert.deepEqual(inserted, [[long.line, 'start']]);
});

test('a provider that has nothing now can be chosen', async () => {
  await answer([LOCAL], ['slurm: no partition has 2 equal nodes with H100.']);
  const provider = field<HTMLSelectElement>('Provider');
  assert.deepEqual([...provider.options].map(({ value }) => value), ['', 'local', 'aws', 'slurm']);
});

test('why others have nothing is behind their names, unless nobody has anything', async () => {
  const whys = ['aws: no region is set.', 'slurm: no `sinfo`.'];
  const reasons = () => host.querySelector<HTMLDetailsElement>('details')!;
  await answer([LOCAL], [...whys, 'The form is slow today.']);
  assert.equal(textOf(reasons(), 'summary'), 'Not available: aws, slurm');
  assert.deepEqual(texts(reasons(), 'div'), ['aws: no region is set.', 'slurm: no sinfo.']);
  assert.equal(textOf(host, '.jsky-form-notes'), 'The form is slow today.');
  reasons().open = true;
  type('3');
  submit();
  await answer([LOCAL], whys.slice(1));
  assert.ok(reasons().open, 'who has opened it goes on reading');
  assert.equal(textOf(reasons(), 'summary'), 'Not available: slurm');
  type('4');
  submit();
  await answer([], whys);
  assert.ok(reasons().hidden);
  assert.equal(textOf(host, '.jsky-form-notes'), 'aws: no region is set.slurm: no sinfo.');
});

test('where nothing is offered, nothing can be started', async () => {
  await answer([], ['aws: no credentials.']);
  assert.ok(button('Start').disabled);
  submit();
  await settled();
  assert.deepEqual(inserted, []);
});

test('Escape closes it', () => {
  host.querySelector('form')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
  assert.equal(closed, 1);
});
