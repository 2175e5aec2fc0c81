"""What was installed on a cluster since it began, also by other notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.formatting import without_secrets


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
    if row is None:
        return tuple(own)
    known = {without_secrets(each): each for each in own}
    return tuple(known.get(each, each) for each in row.spec.get("added", ()))
