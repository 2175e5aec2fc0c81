/* The facts of a cluster, in few words each. */

import type { Entry } from '../api.ts';
import { plain } from '../text.ts';
import { amount, money, stateWord, type Translation } from '../words.ts';

/** Seconds before a cluster ends itself when a warning appears. */
const SOON = 300;

/** A description of a cluster: "4 nodes × A100 · aws". */
export function madeOf(trans: Translation, { provider, nodes, gpu }: Entry): string {
  const parts = [];
  if (nodes !== null) {
    const counted = trans._n('%1 node', '%1 nodes', nodes);
    parts.push(gpu ? `${counted} × ${plain(gpu)}` : counted);
  }
  parts.push(plain(provider));
  return parts.join(' · ');
}

/** What to call each of several clusters, for a choice among them: by its name, with more where others
    have the same. No two are the same. */
export function labelsOf(trans: Translation, entries: readonly Entry[]): string[] {
  const more = [
    ({ state }: Entry) => stateWord(trans, state),
    (entry: Entry) => madeOf(trans, entry),
    ({ id }: Entry) => plain(id)
  ];
  return more.reduce(
    (labels, fact) =>
      labels.map((label, at) =>
        labels.indexOf(label) === labels.lastIndexOf(label) ? label : `${label} · ${fact(entries[at]!)}`
      ),
    entries.map(({ name }) => plain(name))
  );
}

/** What a cluster can be called. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/;

/** A name for a cluster beside one that is there: "train-2", or the next number that is free. */
export function freeName(name: string, entries: readonly Entry[]): string {
  const taken = new Set(entries.map((entry) => entry.name));
  const start = name.slice(0, 58); // of a long one, so that a number has room
  let number = 2;
  while (taken.has(`${start}-${number}`)) {
    number += 1;
  }
  return `${start}-${number}`;
}

/** What a cluster is at beside its runs, as its kernel says: "scaling to 4 nodes"; null if nothing. A start
    says it in the note, and a kernel that is gone not at all. */
export function doingOf({ state, kernels, snapshot }: Entry): string | null {
  return state !== 'starting' && kernels.length > 0 ? (snapshot?.cluster.note ?? null) : null;
}

/** What it costs: "$131.08 an hour · $42.17 so far", "1.25 GPU hours so far"; empty where nothing is
    known. */
export function costOf(trans: Translation, { price, cost, unit, state }: Entry): string {
  const isOff = state === 'stopped';
  const parts = [
    price !== null && isOff && trans.__('its disks %1 an hour', money(price)),
    price !== null && !isOff && trans.__('%1 an hour', money(price)),
    cost !== null && trans.__('%1 so far', amount(trans, cost, unit))
  ];
  return parts.filter(Boolean).join(' · ');
}

/** How long it has been up; `now` is in seconds since the epoch. */
export function upOf(trans: Translation, { created, state }: Entry, now: number): string {
  if (created === null || state === 'down' || state === 'stopped') {
    return '';
  }
  return trans.__('up %1', timeSpan(trans, now - created));
}

/** When it ends or stops by itself, and whether that is soon; null if it does not. */
export function endOf(trans: Translation, entry: Entry): { text: string; soon: boolean } | null {
  const { idle, state } = entry;
  if (!idle || state === 'running' || state === 'stopped') {
    return null;
  }
  if (idle.left !== null) {
    const left = timeSpan(trans, idle.left);
    const text = idle.keeps_disks
      ? trans.__('stops in %1 if it stays idle', left)
      : trans.__('ends in %1 if it stays idle', left);
    return { text, soon: idle.left < SOON };
  }
  const timeout = timeSpan(trans, idle.timeout);
  const text = idle.keeps_disks
    ? trans.__('stops after %1 idle', timeout)
    : trans.__('ends after %1 idle', timeout);
  return { text, soon: false };
}

/** The seconds until an idle cluster ends; null while it is busy, or if they are not known. */
export function leftOf({ state, idle }: Entry): number | null {
  return idle && state !== 'running' && state !== 'stopped' ? idle.left : null;
}

/** All clusters in one line: "2 clusters · $20.10 an hour", without unknown prices. */
export function totalOf(trans: Translation, entries: readonly Entry[]): string {
  const prices = entries.map(({ price }) => price).filter((price) => price !== null);
  const parts = [trans._n('%1 cluster', '%1 clusters', entries.length)];
  if (prices.length > 0) {
    parts.push(trans.__('%1 an hour', money(prices.reduce((sum, price) => sum + price, 0))));
  }
  return parts.join(' · ');
}

/** Seconds as a time: "42 s", "12 min", "3 h 05 min", "2 d 3 h", "7 d". */
export function timeSpan(trans: Translation, seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(whole / unit));
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  if (whole < 3600) {
    return trans.__('%1 min', minutes);
  }
  if (whole < 86400) {
    return trans.__('%1 h %2 min', hours, String(minutes! % 60).padStart(2, '0'));
  }
  const rest = hours! % 24;
  return rest > 0 ? trans.__('%1 d %2 h', days, rest) : trans.__('%1 d', days);
}
