"""What differs between the notebook's values and what ranks have of them, part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from jupyter_sky.analysis.labels import EACH, EVERYTHING, is_item
from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.cluster.namespace.packing import PackedGroup
from jupyter_sky.cluster.namespace.rank_values import RankValue
from jupyter_sky.cluster.namespace.remote_state import RemoteState
from jupyter_sky.serialization.changes import container_changes, model_changes, model_parts
from jupyter_sky.serialization.changes.container_changes import Contents

_SET_AGAIN = "set again"  # for a digest, which no value has


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


def set_parts(
    state: RemoteState,
    keys: Collection[str],
    token: int,
    parts: Collection[str | None],
    now: Mapping[str, str] | None,
) -> bool:
    """Record that the notebook has set parts of a container, perhaps to what they were.

    Parameters
    ----------
    state
        What ranks have; it is updated.
    keys
        The names of the values that the container is in.
    token
        The container's.
    parts
        The labels of the parts (see `set_again.SetObject`).
    now
        What is in the container.

    Returns
    -------
    bool
        ``False`` if it is not known of all ranks what was in it.
    """

    def revised(key: str, value: RankValue) -> RankValue:
        if not value.contents or token not in value.contents:
            return value
        # If something else has changed in it, that is probably what was set.
        same = value.contents[token] == now
        labels = {part or EVERYTHING for part in parts if part not in (None, EACH) or same}
        if EACH in labels:
            labels.update(filter(is_item, now or ()))
        if not (labels := labels - {EACH}):
            return value
        digest = _SET_AGAIN if key in keys and not value.is_outdated else value.digest
        contents = container_changes.without(value.contents, token, labels)
        return replace(value, digest=digest, contents=contents)

    values = [*state.everything()]
    state.revise({key for key, _ in values}, revised)
    holding = (value for key, value in values if key in keys and not value.is_outdated)
    return all(token in (value.contents or ()) for value in holding)


def set_in_models(
    state: RemoteState, holders: Mapping[int, Set[str]], parts: Mapping[int, Set[str | None]]
) -> set[int]:
    """Record that the notebook has set parts of models, perhaps to what they were.

    Parameters
    ----------
    state
        What ranks have; it is updated.
    holders
        The names of the values in which something was set, by its identity.
    parts
        The labels of what was set in it, by its identity (see `model_parts.set_parts`).

    Returns
    -------
    set of int
        The identities of what is in models.
    """
    keys = set().union(*holders.values())
    held = [each for key, value in state.everything() if key in keys and (each := value.models)]
    distinct = {id(models): models for models in held}  # which ranks share
    now = {each: model_parts.set_parts(models, parts) for each, models in distinct.items()}
    found = {each for _, identities in now.values() for each in identities}

    def revised(key: str, value: RankValue) -> RankValue:
        if id(value.models) in now:
            return replace(value, digest=_SET_AGAIN, models=now[id(value.models)][0])
        is_part = key in of_found and value.digest is not None
        return replace(value, digest=_SET_AGAIN) if is_part else value

    if found:
        of_found = set().union(*(holders.get(each, ()) for each in found))
        # All are sent: others would refer to what ranks have of one that is not, like a schedule,
        # or a parameter that has a name of its own.
        state.revise(keys, revised)
    return found


def mark_as_changed(state: RemoteState, keys: Collection[str]) -> set[str]:
    """Have values be sent again, of which the parts are compared.

    Returns
    -------
    set of str
        The names of those of which it is known on all ranks what was in them.
    """
    known = {*keys} - {key for key, value in state.everything() if not value.contents}
    state.revise(known, lambda key, value: replace(value, digest=_SET_AGAIN))
    return known
