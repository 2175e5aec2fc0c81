"""What was installed on a cluster since it began, also by other notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.formatting import with_secrets


def all_added(identity: str, own: Sequence[str]) -> tuple[str, ...]:
    """Return the requirements that were added to a cluster, in pip's syntax.

    Parameters
    ----------
    identity
        The id of the cluster.
    own
        Those that are known here, with passwords, which the registry does not keep.
    """
    row = registry.with_id(identity)
    return with_secrets(row.spec.get("added", ()), own) if row else tuple(own)
