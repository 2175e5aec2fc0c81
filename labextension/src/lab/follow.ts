/* Follows the live logs of ranks; a connection that breaks is opened again. */

import type { LogChunk } from '../api.ts';
import type { Client } from './client.ts';

/** Milliseconds before a connection is opened again, and most of them where none can be opened. */
const PAUSE = 2000;
const LONGEST_PAUSE = 30_000;

/** Follows ranks from their last `tail` lines on, until the function that is returned is called: no
    chunk comes after that. They are named as in `0,2-3`. After a break the last lines come again; the
    chunk that `isFirst` begins with them. None does where only the end is said: what is shown stays. */
export function follow(
  client: Client,
  cluster: string,
  ranks: string,
  tail: number,
  onChunk: (chunk: LogChunk, isFirst: boolean) => void
): () => void {
  let socket: WebSocket | null = null;
  let later: ReturnType<typeof setTimeout> | undefined;
  let ended = false;
  let pause = PAUSE;
  const open = () => {
    let isFirst = true;
    socket = client.live(cluster, ranks, tail);
    socket.onmessage = ({ data }) => {
      if (ended) {
        return; // what is on its way when a connection is closed may still arrive
      }
      const chunk: LogChunk = JSON.parse(data);
      ended = chunk.end !== null;
      const hasEntries = chunk.entries.length > 0;
      onChunk(chunk, isFirst && hasEntries);
      isFirst &&= !hasEntries;
      pause = PAUSE;
    };
    socket.onclose = () => {
      if (!ended) {
        later = setTimeout(open, pause);
        pause = Math.min(2 * pause, LONGEST_PAUSE);
      }
    };
  };
  open();
  return () => {
    ended = true;
    clearTimeout(later);
    socket?.close();
  };
}
