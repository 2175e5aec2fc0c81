"""What the registry keeps of what a cluster got after its start: packages and plugins."""

from __future__ import annotations

import json
from collections.abc import Sequence

from jupyter_sky.cluster.inventory.registry import opened


def record_packages(identity: str, added: Sequence[str]) -> None:
    """Record what was installed on a cluster since it began, without passwords."""
    with opened() as database:
        database.execute(
            "UPDATE clusters SET spec = json_set(spec, '$.added', json(?)) WHERE id = ?",
            (json.dumps(list(added)), identity),
        )


def record_plugins(identity: str, plugins: Sequence[str]) -> None:
    """Record the plugins of a cluster that has got more of them."""
    with opened() as database:
        database.execute(
            "UPDATE clusters SET spec = json_set(spec, '$.plugins', json(?)) WHERE id = ?",
            (json.dumps(list(plugins)), identity),
        )
