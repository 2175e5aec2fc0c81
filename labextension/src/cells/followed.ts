/* The ranks that the user has selected in strips, where no kernel sends their output to this page: it
   comes from their logs. Those that a cell shows have theirs there, unless it lacks some. */

import type { Follow } from '../sidebar/ranks.ts';
import { isOver } from '../run.ts';
import { Tail } from '../tail.ts';
import type { Feed } from './feed.ts';
import type { RunStrip } from './strip.ts';

export class FollowedRanks {
  readonly #feed: Feed;
  readonly #follow: Follow;
  readonly #isIncomplete: (strip: RunStrip) => boolean;
  readonly #ends = new Map<RunStrip, () => void>();

  constructor(feed: Feed, follow: Follow, isIncomplete: (strip: RunStrip) => boolean) {
    this.#feed = feed;
    this.#follow = follow;
    this.#isIncomplete = isIncomplete;
  }

  /** Follows the rank that is selected in a strip, if there is one and somebody has to. */
  follow(strip: RunStrip): void {
    this.unfollow(strip);
    const { run, selected: rank, snapshot } = strip;
    if (!run || !snapshot || rank === null || isOver(snapshot)) {
      return;
    }
    if (this.#feed.isHeard(run) || this.#feed.get(run)?.isLost) {
      return;
    }
    if (!snapshot.run?.shown.includes(rank) || this.#isIncomplete(strip)) {
      const tail = new Tail(() => {
        if (this.#ends.get(strip) === end) {
          this.#feed.setOutput(run, rank, tail.text);
        }
      });
      let isOfRun = false;
      const end = this.#follow(snapshot.cluster.id, String(rank), (chunk, isFirst) => {
        isOfRun &&= !isFirst;
        const entries = chunk.entries.filter(({ run: begun }) => {
          isOfRun = begun === null ? isOfRun : begun === run;
          return isOfRun;
        });
        if (chunk.entries.length > 0) {
          // Otherwise it says why no more comes: what is shown stays.
          tail.add({ ...chunk, entries }, isFirst);
        }
      });
      this.#ends.set(strip, end);
    }
  }

  unfollow(strip: RunStrip): void {
    this.#ends.get(strip)?.();
    this.#ends.delete(strip);
  }
}
