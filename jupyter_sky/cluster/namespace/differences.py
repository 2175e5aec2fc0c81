"""What differs between the notebook's values and what ranks have of them, part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.packing import PackedGroup
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.serialization.changes import container_changes, model_changes
from jupyter_sky.serialization.changes.container_changes import Contents


def differences(
    state: RemoteState,
    rank: int,
    items: Sequence[NamespaceItem],
    group: PackedGroup,
    whole: Collection[str],
) -> dict[str, list[str]]:
    """Return what differs in values that a rank has (see `serialization.changes`).

    Parameters
    ----------
    state
        What ranks have.
    rank
        The rank.
    items
        The values that it is sent.
    group
        They, as they are sent.
    whole
        Names of which everything counts: the rank has to have what the notebook has.
    """
    has = {item: state.value(rank, item.key) for item in items}
    models = ((item.key, each.models if each else None, item.models) for item, each in has.items())
    tokens = group.tokens_before
    former = _contents_on(state, rank, [item.key for item in items])
    if not tokens <= former.keys():  # they were under other names
        former = {**_contents_on(state, rank, state.values(rank)), **former}
    former = {token: former[token] for token in tokens & former.keys()}
    return {
        **model_changes.changes_of(models, group.numbers, whole),
        **container_changes.changes_of(former, group.contents, whole),
    }


def _contents_on(state: RemoteState, rank: int, names: Iterable[str]) -> Contents:
    """Return what was in the containers of values when a rank was sent them last."""
    values = [value for name in names if (value := state.value(rank, name)) and value.contents]
    found: dict[int, Mapping[str, str]] = {}
    for value in sorted(values, key=lambda each: each.run):
        found.update(value.contents or {})
    return found
