"""Which copies of data Dask's workers keep: what was sent to them once is not sent again."""

from __future__ import annotations

from typing import Any

from distributed.active_memory_manager import ReduceReplicas, SuggestionGenerator

POLICY = f"{__name__}.KeepSentData"
"""The policy's name in Dask's configuration."""


class KeepSentData(ReduceReplicas):
    """Removes copies of results that nobody waits for, and leaves those of the notebook's data.

    A worker uses that data for one task after another. Between two of them Dask would remove its
    copy, and send it again for the next.
    """

    def run(self) -> SuggestionGenerator:
        """Suggest what to remove."""
        suggestions = super().run()
        chosen: Any = None
        while True:
            try:
                suggestion = suggestions.send(chosen)
            except StopIteration:
                return
            # No task of the cluster has made it.
            is_sent = suggestion.ts.run_spec is None
            chosen = None if is_sent else (yield suggestion)
