/* What a rank writes, live. A connection that breaks is made again, for as long as somebody looks. */

import type { LogChunk } from '../api.ts';
import type { Client } from './client.ts';

/** Milliseconds before another try. */
const PAUSE = 2000;

/** Follows a rank from its last `tail` lines on, until what this returns is called. After a break
    the last lines come again, announced by `anew`. */
export function follow(
  client: Client,
  cluster: string,
  rank: number,
  tail: number,
  take: (chunk: LogChunk, anew: boolean) => void
): () => void {
  let socket: WebSocket | null = null;
  let later: ReturnType<typeof setTimeout> | undefined;
  let over = false;
  const open = () => {
    let anew = true;
    socket = client.live(cluster, rank, tail);
    socket.onmessage = ({ data }) => {
      const chunk: LogChunk = JSON.parse(data);
      over ||= chunk.end !== null;
      take(chunk, anew);
      anew = false;
    };
    socket.onclose = () => {
      if (!over) {
        later = setTimeout(open, PAUSE);
      }
    };
  };
  open();
  return () => {
    over = true;
    clearTimeout(later);
    socket?.close();
  };
}
