"""Takes over the notebook's changes to what ranks have, like models and containers.

What ranks have trained, and what refers to it, like an optimizer or a trainer, stays: only what was
changed in the notebook is changed (see `model_changes` and `container_changes`). Whole values are
received nevertheless: where the changes cannot be taken over, what was received takes the place of
what is here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jupyter_sky.node.rank.namespace.counterparts import counterparts
from jupyter_sky.node.rank.namespace.takeover import (
    arrays,
    containers,
    models,
    optimizers,
)
from jupyter_sky.serialization import pickling
from jupyter_sky.serialization.changes.container_changes import has_parts
from jupyter_sky.serialization.models.torch_kinds import KINDS
from jupyter_sky.serialization.object_tokens.kinds import is_mutable
from jupyter_sky.serialization.object_tokens.received import received_objects
from jupyter_sky.serialization.object_tokens.tokens import FIRST_OF_RANKS

_HOLDER = len(KINDS)


class Takeover:
    """Changes what is here as the notebook's was changed.

    Parameters
    ----------
    bound
        What was received, by name. Values that stay here are put in place of it.
    present
        Returns what a name stands for here; ``None`` if there is no such name.
    """

    def __init__(self, bound: dict[str, Any], present: Callable[[str], Any]) -> None:
        self._bound = bound
        self._present = present
        self._is_replaced = False  # a model: what belongs to it belongs to another one now
        self._replaced: dict[int, Any] = {}  # what is here, by the identity of what was received
        self._places: list[tuple[Any, Any]] = []  # dictionaries and lists, each with a key
        self._filled: list[tuple[Any, Any]] = []  # holds on to what was received, as `_taken` does
        # By name; this also holds on to what is looked for by its identity.
        self._taken: dict[str, Any] = {}

    def apply(self, changes: Mapping[str, Collection[str]]) -> None:
        """Take over changes, as `changes_of` of both kinds describes them."""
        self._find_counterparts(changes)
        here: dict[int, Any] = {}
        with suppress(Exception):  # of any kind, from the user's classes: nothing is kept
            here = self._tensors_here()
        pairs = {name: self._pair(name) for name in changes}
        pairs = {name: pair for name, pair in pairs.items() if pair[1] is not None}
        orders = {name: _order(received) for name, (received, _) in pairs.items()}
        trained = [name for name in pairs if orders[name] != _HOLDER]
        trained.sort(key=orders.__getitem__)  # what refers to others comes last
        holders = {name: pair for name, pair in pairs.items() if orders[name] == _HOLDER}
        inner = {name: holders.pop(name) for name in [*holders] if " " in name}
        known = {*trained, *holders}
        others = {name: value for name, value in self._bound.items() if name not in known}
        opaque = _opaque(others) if any(orders[name] for name in trained) else None
        for name in trained:
            self._take_over(name, *pairs[name], changes[name], opaque)
        if not self._is_replaced:
            with suppress(Exception):  # of any kind, from the user's classes: nothing is kept
                self._change(inner, changes)
        if holders and not self._is_replaced:
            self._keep(holders, others.values())
        if here and not self._is_replaced:
            with suppress(Exception):  # of any kind, from the user's classes: nothing is kept
                self._fill(here)
        if self._replaced:
            received_objects.replace(self._replaced)
            self._places += [(self._bound, name) for name in self._bound.keys() - self._taken]
            _relink(self._places, self._replaced)

    def _find_counterparts(self, keys: Iterable[str]) -> None:
        """Find what is here of values that other ranks have given in a run without this one.

        It has the same names. What has a token is what the notebook knows by another value.
        """
        former = received_objects.former
        tokens = [int(token) for name, _, token in (key.rpartition(" ") for key in keys) if name]
        given = [received_objects.get(token) for token in tokens if token >= FIRST_OF_RANKS]
        if all(id(each) in former for each in given):
            return
        theirs = counterparts("", self._bound)
        own = counterparts("", {name: self._present(name) for name in self._bound})
        known = received_objects.identities()
        for token in theirs.keys() & own.keys():
            if id(own[token]) not in known:
                former.setdefault(id(theirs[token]), own[token])

    def _pair(self, name: str) -> tuple[Any, Any]:
        """Return what was received, and what is here, for a key of the changes."""
        name, _, token = name.rpartition(" ")
        if not name:
            return self._bound[token], self._present(token)
        received = received_objects.get(int(token))
        return received, received_objects.former.get(id(received))

    def _take_over(
        self, name: str, received: Any, present: Any, changed: Collection[str], opaque: str | None
    ) -> None:
        """Change a model or optimizer; if that cannot be, say what takes its place."""
        if self._is_replaced and _order(received):
            return
        try:
            if _order(received) and opaque:
                raise optimizers.CannotTakeOver(f"{opaque} may refer to it")
            taken = models.take_over(present, received, changed)
        except optimizers.CannotTakeOver as error:
            self._is_replaced = True
            name, _, inner = name.partition(" ")
            what = f"a model in {name}" if inner else name
            print(
                f"{what} was changed in the notebook, and that takes the place of what was "
                f"here, because {error}: make again what refers to it, such as its optimizer "
                "or DistributedDataParallel.",
                file=sys.stderr,
            )
            return
        self._taken[name] = received
        if name in self._bound:
            self._bound[name] = present
        self._replaced |= taken.others
        self._places += taken.places
        received_objects.replace(taken.others)
        for other in self._bound.values():
            optimizers.refer_to(other, taken.others)

    def _change(
        self, pairs: Mapping[str, tuple[Any, Any]], changes: Mapping[str, Collection[str]]
    ) -> None:
        """Change containers, each as the notebook's was changed."""
        former = received_objects.former
        pairs = {
            name: (received, present)
            for name, (received, present) in pairs.items()
            if containers.can_take_over(present, received, changes[name])
        }
        others = {id(received): present for received, present in pairs.values()}
        places: list[tuple[Any, Any]] = []
        staying: list[Any] = []
        for name, (received, present) in pairs.items():
            unchanged = containers.unchanged(received, changes[name])
            replaced = {
                label
                for label, part in unchanged.items()
                if id(part) not in others
                and former.get(id(part), part) is not part
                and has_parts(part)
            }
            changed = {*changes[name], *replaced}
            places += containers.take_over(present, received, changed)
            staying += [part for label, part in unchanged.items() if label not in replaced]
        # What was received for parts that stay as they are is not what names refer to here.
        same = _mutable_in(staying, others) & former.keys() if staying else set()
        self._places += places
        self._replaced = {**{key: former[key] for key in same}, **self._replaced, **others}
        for name, value in self._bound.items():
            if id(value) in others:
                self._bound[name], self._taken[name] = others[id(value)], value

    def _keep(self, holders: Mapping[str, tuple[Any, Any]], others: Iterable[Any]) -> None:
        """Keep values with models as they are here, where only these models were changed."""
        for name in _staying(holders, others, self._replaced):
            received, present = holders[name]
            self._bound[name], self._taken[name] = present, received
            keys = _mutable_in(received, {}) & received_objects.former.keys()
            former = {key: received_objects.former[key] for key in keys}
            self._replaced = {**former, id(received): present, **self._replaced}

    def _tensors_here(self) -> dict[int, Any]:
        """Return tensors under the names that were received, by the identity of what was received.

        What ranks have put in their place, like the result of a computation, is not among them.
        """
        former = {**received_objects.edited, **received_objects.former}
        known = {
            key: each for key, each in former.items() if id(each) != key and arrays.is_one(each)
        }
        if not known:
            return {}
        present = {name: self._present(name) for name in self._bound}
        here = arrays.found_in(present.values())
        # A name that is outdated is gone from here, but not what was made of its value.
        gone = {id(self._bound[name]) for name, each in present.items() if each is None}
        return {key: each for key, each in known.items() if id(each) in here or key in gone}

    def _fill(self, here: Mapping[int, Any]) -> None:
        """Give tensors that are here the content of those that the notebook has edited."""
        received = arrays.found_in(self._bound.values())
        pairs = [
            (here[key], each)
            for key, each in received.items()
            if key in here and key not in self._replaced and arrays.can_take_over(here[key], each)
        ]
        if not pairs:
            return
        values = [*self._bound.values(), *(where[key] for where, key in self._places)]
        shared = arrays.sharing(values)
        self._filled = [(own, each) for own, each in pairs if id(each) not in shared]
        for own, each in self._filled:
            arrays.take_over(own, each)
        others = {id(each): own for own, each in self._filled}
        self._replaced |= others
        for name, value in self._bound.items():
            optimizers.refer_to(value, others)
            if id(value) in others:
                self._bound[name], self._taken[name] = others[id(value)], value


def _order(value: Any) -> int:
    """Return a number that is larger for what refers to the others."""
    kinds = enumerate(KINDS)
    return next((order for order, is_kind in kinds if is_kind(value)), _HOLDER)


def _staying(
    holders: Mapping[str, tuple[Any, Any]], others: Iterable[Any], replaced: Mapping[int, Any]
) -> list[str]:
    """Return the names of values with models that can stay as they are here.

    What was received for them shares with ``others`` only what is here: those will refer to it.
    """
    here = {*received_objects.former, *(id(received) for received, _ in holders.values())}
    inside = {name: _mutable_in(received, replaced) for name, (received, _) in holders.items()}
    outside = set[int]().union(*(_mutable_in(each, replaced) for each in others))
    while torn := [name for name, keys in inside.items() if keys & outside - here]:
        for name in torn:
            outside |= inside.pop(name)
    return [*inside]


def _mutable_in(received: Any, replaced: Mapping[int, Any]) -> set[int]:
    """Return the identities of the mutable objects in a value, without those in ``replaced``."""
    with suppress(Exception):  # it was unpickled here, so that mostly it can be pickled
        memo = pickling.dump_linked([received], dict.fromkeys(replaced, 0)).memo
        return {key for key, (_, each) in memo.items() if is_mutable(each)}
    return set()


def _opaque(bound: Mapping[str, Any]) -> str | None:
    """Return the name of a value that cannot be made to refer to what is here, if there is one."""
    for name, value in bound.items():
        if _order(value) == _HOLDER:
            try:
                pickling.dump(value)
            except Exception:  # of any kind: code of the user's is asked what is in the value
                return name
    return None


def _relink(places: Sequence[tuple[Any, Any]], others: Mapping[int, Any]) -> None:
    """Have what was received, like a list or a trainer, refer to what is here.

    Parameters
    ----------
    places
        Where it is now: dictionaries and lists, each with a key.
    others
        What is here, by the identity of what it takes the place of.
    """
    values = [where[key] for where, key in places]
    with suppress(Exception):  # it was unpickled here, so that mostly it can be pickled
        if not others.keys().isdisjoint(pickling.dump_linked(values, {}).memo):
            # What is here is not copied, nor what was only referred to.
            here = {
                id(each): each for each in [*others.values(), *received_objects.former.values()]
            }
            values, copies = pickling.relink(values, {**here, **others})
            received_objects.replace(copies)
            for (where, key), value in zip(places, values, strict=True):
                where[key] = value
