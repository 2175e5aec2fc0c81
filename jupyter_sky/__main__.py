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
        from jupyter_sky.notebook import cli
    except KeyboardInterrupt:
        return _STOPPED
    gc.freeze()
    gc.enable()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
