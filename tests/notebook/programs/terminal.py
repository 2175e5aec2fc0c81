"""Commands of a terminal, carried out in the process of a test."""

from __future__ import annotations

import sys

from jupyter_sky.notebook import cli


def run_command(*words: str) -> int:
    """Carry out a command of ``jupyter sky`` and return its exit status."""
    main = sys.modules["__main__"]
    try:
        return cli.main(words)
    finally:  # or other tests would be in a terminal, and in its `__main__`
        cli._CommandShell.clear_instance()
        sys.modules["__main__"] = main
