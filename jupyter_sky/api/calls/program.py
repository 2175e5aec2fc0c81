"""The program that makes calls, if it is one: ranks find its arguments, as its children would."""

from __future__ import annotations

import sys


def program_words() -> tuple[str, ...] | None:
    """Return ``sys.argv`` of a script, or of what ``jupyter sky run`` runs; ``None`` in a notebook.

    The arguments of a kernel are nothing to the user's code.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return tuple(map(str, sys.argv))
    words: tuple[str, ...] | None = getattr(shell, "words", None)
    return words
