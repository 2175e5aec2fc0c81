/* The kernel of a page, as far as the panel sends messages to it without ipywidgets. */

/** What Jupyter's pages let a widget do with its kernel; others offer less or nothing. */
export interface Kernel {
  clientId?: string;
  username?: string;
  interrupt?(): Promise<void>;
  sendControlMessage?(message: unknown): unknown;
}

/** Asks the kernel for something on its control channel, which answers while a cell runs; says
    whether the page can. `jupyter_sky/notebook/sidebar/control_channel.py` is the other end. */
export function ask(kernel: Kernel, content: object): boolean {
  if (!kernel.sendControlMessage) {
    return false;
  }
  kernel.sendControlMessage({
    channel: 'control',
    header: {
      // `crypto.randomUUID` only exists on pages with a secure origin.
      msg_id: `${Date.now()}-${Math.random()}`,
      msg_type: 'sky_request',
      session: kernel.clientId,
      username: kernel.username,
      version: '5.4',
      date: new Date().toISOString()
    },
    parent_header: {},
    metadata: {},
    content,
    buffers: []
  });
  return true;
}
