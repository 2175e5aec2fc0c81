"""Seeds of random numbers: a forked process would draw the same ones as its parent and siblings.

Python's own `random` sees to that itself.
"""

from __future__ import annotations

import contextlib
import sys


def draw_seeds() -> None:
    """Renew the seeds of libraries that were seeded before this process was forked.

    Otherwise all ranks, even of later clusters, and all processes that carry out calls would
    shuffle, drop out and augment alike.
    """
    with contextlib.suppress(KeyError, AttributeError):
        sys.modules["torch"].default_generator.seed()
    with contextlib.suppress(KeyError, AttributeError):
        sys.modules["numpy.random"].seed()
