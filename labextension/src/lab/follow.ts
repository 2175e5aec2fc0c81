/* Follows the live log of a rank; a connection that breaks is opened again. */

import type { LogChunk } from '../api.ts';
import type { Client } from './client.ts';

/** Milliseconds before a connection is opened again. */
const PAUSE = 2000;

/** Follows a rank from its last `tail` lines on, until the function that is returned is called. After
    a break the last lines come again; the chunk that `isFirst` begins with them. */
export function follow(
  client: Client,
  cluster: string,
  rank: number,
  tail: number,
  onChunk: (chunk: LogChunk, isFirst: boolean) => void
): () => void {
  let socket: WebSocket | null = null;
  let later: ReturnType<typeof setTimeout> | undefined;
  let ended = false;
  const open = () => {
    let isFirst = true;
    socket = client.live(cluster, rank, tail);
    socket.onmessage = ({ data }) => {
      const chunk: LogChunk = JSON.parse(data);
      ended ||= chunk.end !== null;
      onChunk(chunk, isFirst);
      isFirst = false;
    };
    socket.onclose = () => {
      if (!ended) {
        later = setTimeout(open, PAUSE);
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
