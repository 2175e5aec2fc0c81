"""Makes Dask's workers keep data that was sent to them, so that it is not sent again."""

from __future__ import annotations

from typing import Any

from distributed.active_memory_manager import ReduceReplicas, SuggestionGenerator

POLICY = f"{__name__}.KeepSentData"
"""The policy's name in Dask's configuration."""


class KeepSentData(ReduceReplicas):
    """Removes copies of results that nobody waits for, but keeps copies of the notebook's data.

    A worker uses such data for many tasks. Between two of them, Dask would remove its copy, and
    send it again for the next one.
    """

    def run(self) -> SuggestionGenerator:
        """Suggest copies to remove."""
        suggestions = super().run()
        chosen: Any = None
        while True:
            try:
                suggestion = suggestions.send(chosen)
            except StopIteration:
                return
            # It was not made by a task of the cluster.
            is_sent = suggestion.ts.run_spec is None
            chosen = None if is_sent else (yield suggestion)
