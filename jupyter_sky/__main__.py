"""``python -m jupyter_sky``: the same as ``jupyter sky`` in a terminal."""

from __future__ import annotations

import gc
import sys

_STOPPED = 130
"""The exit status after Ctrl-C."""


def main() -> int:
    """Run the command of the command line, and return the exit status."""
    # Imports make no garbage, and looking for it takes a fifth of their time.
    gc.disable()
    try:
        from jupyter_sky.cluster.inventory import registry
        from jupyter_sky.notebook import cli
    except KeyboardInterrupt:
        return _STOPPED
    gc.freeze()
    gc.enable()
    words = sys.argv[1:]
    if len(words) > 1 and words[0] == registry.ONLY:
        registry.use_only(words[1])
        words = words[2:]
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
