"""Which warnings the notebook ignores, asked before each run."""

from __future__ import annotations

import warnings

from jupyter_sky.serialization.process.warning_filters import FilterWatch


def test_filters_are_looked_at_again_once_one_has_changed() -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        watch = FilterWatch()
        assert watch.here().ignored == ()
        warnings.filterwarnings("ignore", "ONE", UserWarning)
        first = watch.here()
        assert [each[:2] for each in first.ignored] == [("ONE", "UserWarning")]
        assert watch.here() is first
        # In the place of the other, so that there are as many as before.
        warnings.filters[:] = []
        warnings.filterwarnings("ignore", "TWO", UserWarning)
        assert [each[:2] for each in watch.here().ignored] == [("TWO", "UserWarning")]
        warnings.resetwarnings()
        assert watch.here().ignored == ()
