"""What comes back from ranks is bound in the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle


def bind(
    shell: InteractiveShell, cluster: Cluster, run: RunHandle, values: Mapping[str, Any]
) -> None:
    """Bind values that a run was asked for.

    The ranks keep what they have under these names; it is not sent back to them.
    """
    shell.push(dict(values))
    cluster.sync.returned(values, shell.user_ns, run.bound)
