"""``python -m jupyter_sky``: the same as ``jupyter sky`` in a terminal."""

from __future__ import annotations

import sys

from jupyter_sky.notebook.cli import main

if __name__ == "__main__":
    sys.exit(main())
