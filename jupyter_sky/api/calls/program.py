"""The program that makes calls, if any: ranks get its arguments, as its children would."""

from __future__ import annotations

import sys

from jupyter_sky.api.display.wording import shell_here


def program_words() -> tuple[str, ...] | None:
    """Return ``sys.argv`` of a script, or of a program of ``jupyter sky run``; else ``None``.

    In a notebook, the arguments of its kernel do not concern the user's code.
    """
    shell = shell_here()
    if shell is None:
        return tuple(map(str, sys.argv))
    words: tuple[str, ...] | None = getattr(shell, "words", None)
    return words
