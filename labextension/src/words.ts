/* States and numbers in words, and how words are translated. */

import type { Entry } from './api.ts';
import type { Cluster } from './snapshot.ts';

/** The part of JupyterLab's `TranslationBundle` that is used here, so that one can be handed over. */
export interface Translation {
  /** Returns `text` in the user's language, with `%1`, `%2`… replaced. */
  __(text: string, ...values: unknown[]): string;
  /** The same for a number of things, which is `%1`. */
  _n(one: string, many: string, count: number, ...values: unknown[]): string;
}

export const english: Translation = {
  __: (text, ...values) =>
    text.replace(/%(\d)/g, (_, position) => String(values[Number(position) - 1])),
  _n: (one, many, count, ...values) => english.__(count === 1 ? one : many, count, ...values)
};

/** The state of a cluster. */
export type State = Entry['state'];

export function stateWord(trans: Translation, state: State): string {
  switch (state) {
    case 'starting':
      return trans.__('starting');
    case 'ready':
      return trans.__('idle');
    case 'running':
      return trans.__('running');
    case 'lost':
      return trans.__('lost');
    case 'stopped':
      return trans.__('stopped');
    case 'down':
      return trans.__('ended');
    default:
      return trans.__('not connected');
  }
}

/** 1234567 as "1.23 MB". */
export function size(bytes: number): string {
  const [factor, unit] = unitOf(bytes);
  return `${digits(bytes / factor)} ${unit}`;
}

/** 12.1 of 40 GB as "12.1 / 40 GB". */
export function share([used, total]: [number, number]): string {
  const [factor, unit] = unitOf(total);
  return `${digits(used / factor)} / ${digits(total / factor)} ${unit}`;
}

/** 3723 seconds as "1:02:03"; below a minute "42 s", or "4.2 s" and "29 ms" if `exact`. */
export function duration(seconds: number, exact: boolean): string {
  if (exact && seconds < 0.1) {
    return `${Math.round(1000 * seconds)} ms`;
  }
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return exact ? `${seconds.toFixed(1)} s` : `${whole} s`;
  }
  const two = (value: number) => String(value).padStart(2, '0');
  const minutes = Math.floor(whole / 60);
  return minutes < 60
    ? `${minutes}:${two(whole % 60)}`
    : `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)}`;
}

/** [0, 1, 2, 5] as "0-2, 5". */
export function rankRanges(ranks: number[]): string {
  const parts: [number, number][] = [];
  for (const rank of ranks) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) {
      last[1] = rank;
    } else {
      parts.push([rank, rank]);
    }
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(', ');
}

/** 1234.5 as "$1,234.50", 0.0123 as "$0.0123", 0.02 as "$0.02": a cost is never shown as zero. */
export function money(dollars: number): string {
  if (dollars > 0 && dollars < 0.0001) {
    return '< $0.0001';
  }
  const digits = dollars >= 0.1 || dollars === 0 ? 2 : 4;
  const exact = { minimumFractionDigits: 2, maximumFractionDigits: digits };
  return `$${dollars.toLocaleString('en-US', exact)}`;
}

/** A cost in its unit: "$0.12", "1.25 GPU hours". Records in older notebooks have dollars. */
export function amount(trans: Translation, cost: number, unit: Cluster['unit'] | undefined): string {
  if (unit !== 'GPU hours' && unit !== 'node hours') {
    return money(cost);
  }
  const exact = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  const hours = cost > 0 && cost < 0.005 ? '< 0.01' : cost.toLocaleString('en-US', exact);
  return unit === 'GPU hours' ? trans.__('%1 GPU hours', hours) : trans.__('%1 node hours', hours);
}

export function percent(part: number): string {
  return `${Math.round(part * 100)} %`;
}

const UNITS: [number, string][] = [
  [1e12, 'TB'],
  [1e9, 'GB'],
  [1e6, 'MB'],
  [1e3, 'kB'],
  [1, 'B']
];

function unitOf(bytes: number): [number, string] {
  return UNITS.find(([factor]) => bytes >= factor) ?? [1, 'B'];
}

function digits(value: number): string {
  return String(Number(value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)));
}
