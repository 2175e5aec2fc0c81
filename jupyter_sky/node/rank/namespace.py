"""The user's names on a rank: binds what the notebook sends, packs what it asks for."""

from __future__ import annotations

import os
import sys
import uuid
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import jupyter_sky
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.errors import UsageError
from jupyter_sky.node.rank.gathering import GatheredFiles, Gatherer
from jupyter_sky.node.rank.module_reloader import ModuleReloader, file_clock
from jupyter_sky.serialization import blobs, cell_sources, model_changes, pickling
from jupyter_sky.serialization.models import hooks, optimizers, sharded
from jupyter_sky.serialization.object_tokens import Tokens, is_mutable, received_objects
from jupyter_sky.serialization.pickling import Pickled
from jupyter_sky.serialization.process import module_attributes
from jupyter_sky.transport.protocol.messages import NameGroup, Packed, PackedTokens


class Namespace:
    """The user's names on a rank.

    Parameters
    ----------
    names
        The namespace of its shell.
    folder
        The folder of the node's blobs.
    gatherer
        Gathers values that are sharded over the ranks.

    Attributes
    ----------
    arrived
        The shipments that were bound for the present run (see `messages.NameGroup`).
    """

    def __init__(self, names: dict[str, Any], folder: Path, gatherer: Gatherer) -> None:
        self.names = names
        self._folder = folder
        self._gatherer = gatherer
        self._modules = ModuleReloader()
        self._modules.record_imports(since=0)
        # Objects keep their class alive, but a class that was sent may have no objects yet.
        self._classes: dict[str, type] = {}
        self._received: weakref.WeakSet[type] = weakref.WeakSet()
        self._writes = NamespaceDiff(names)
        self._attributes: set[str] = set()  # those of modules that the notebook has set
        self._watched: Sequence[str] = ()
        self._since = 0
        self.arrived: list[str] = []
        hooks.number_apart()

    def receive(self, groups: Sequence[NameGroup], outdated: Iterable[str] = ()) -> None:
        """Bind the names that the notebook sent, and reload the user's edited modules.

        Parameters
        ----------
        groups
            The groups of names.
        outdated
            Names to delete: the notebook has other values for them, which are not needed now.
        """
        for name in outdated:
            self.names.pop(name, None)
        self._since = file_clock()
        self.arrived = []
        received_objects.drop_unused()
        for group in groups:
            if group["kind"] == "source":
                self._load(group).install(self._folder)
                self.arrived.append(group["shipment"])
        self._modules.reload_edited(self.names, self._attributes)
        for group in groups:
            if group["kind"] != "source":
                self._bind(group)
                self.arrived.append(group["shipment"])

    def _bind(self, group: NameGroup) -> None:
        cell_sources.register(group["cells"])
        received_objects.former.clear()
        received = self._load(group)
        values = received if group["together"] else [received]
        bound = dict(zip(group["names"], values, strict=True))
        if group["kind"] == "class":
            self._classes.update(bound)
            for kind in bound.values():
                self._bind_class(kind)
            return
        self._take_over(bound, group.get("changes", {}))
        received_objects.former.clear()
        for name in [each for each in bound if ":" in each]:
            value = bound.pop(name)
            if module_attributes.get(name) is not value:  # like a function, which is imported
                module_attributes.put(name, value)
                self._attributes.add(name)
        self.names.update(bound)
        self._received.update(each for each in values if isinstance(each, type))

    def _take_over(self, bound: dict[str, Any], changes: Mapping[str, Collection[str]]) -> None:
        """Apply the notebook's changes to models and optimizers, instead of binding new ones."""
        is_replaced = False
        taken: dict[str, Any] = {}  # which also holds on to what is looked for by its identity
        replaced: dict[int, Any] = {}
        places: list[tuple[dict[Any, Any], Any]] = []
        # What refers to others comes after them.
        pairs = {name: self._pair(name, bound) for name in changes}
        names = [name for name, (_, present) in pairs.items() if present is not None]
        names.sort(key=lambda name: _order(pairs[name][0]))
        others = {name: value for name, value in bound.items() if name not in names}
        opaque = _opaque(others) if any(_order(pairs[name][0]) for name in names) else None
        holders = {name: pairs[name] for name in names if _order(pairs[name][0]) == _HOLDER}
        for name in names:
            received, present = pairs[name]
            if name in holders or (is_replaced and _order(received)):
                continue  # it belongs to another model now
            try:
                if _order(received) and opaque:
                    raise optimizers.CannotTakeOver(f"{opaque} may refer to it")
                taken_over = model_changes.take_over(present, received, changes[name])
            except optimizers.CannotTakeOver as error:
                name, _, inner = name.partition(" ")
                what = f"a model in {name}" if inner else name
                print(
                    f"{what} was changed in the notebook, and that takes the place of what was "
                    f"here, because {error}: make again what refers to it, such as its optimizer "
                    "or DistributedDataParallel.",
                    file=sys.stderr,
                )
                is_replaced = True
                continue
            taken[name] = received
            if name in bound:
                bound[name] = present
            replaced |= taken_over.others
            places += taken_over.places
            received_objects.replace(taken_over.others)
            for other in bound.values():
                optimizers.refer_to(other, taken_over.others)
        for name in () if is_replaced else _staying(holders, others.values(), replaced):
            received, present = holders[name]
            bound[name], taken[name] = present, received
            keys = _mutable_in(received, {}) & received_objects.former.keys()
            former = {key: received_objects.former[key] for key in keys}
            replaced = {**former, id(received): present, **replaced}
        if replaced:
            received_objects.replace(replaced)
            places += [(bound, name) for name in bound.keys() - taken.keys()]
            _relink(places, replaced)

    def _pair(self, name: str, bound: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return what was received, and what is here, for a key of `model_changes.changes_of`."""
        name, _, token = name.partition(" ")
        if not token:
            return bound[name], self._present(name)
        received = received_objects.get(int(token))
        return received, received_objects.former.get(id(received))

    def _present(self, name: str) -> Any:
        """Return what a name stands for now, which may be that of an attribute of a module."""
        return module_attributes.get(name) if ":" in name else self.names.get(name)

    def _bind_class(self, kind: type) -> None:
        """Make a class of the notebook available by name, as `pickle` and new processes need.

        A cell need not name the classes of the objects that it uses. A present value of the name is
        kept, unless it is an earlier version of the class.
        """
        name = kind.__qualname__
        if kind.__module__ == "__main__" and name.isidentifier():
            present = self.names.get(name, kind)
            if present is kind or (isinstance(present, type) and present in self._received):
                self.names[name] = kind
        self._received.add(kind)

    def _load(self, group: NameGroup) -> Any:
        tokens = None if group["tokens"] is None else Tokens(*group["tokens"])
        try:
            return blobs.unpack(group["packed"], self._folder, tokens)
        except BaseException as error:
            error.add_note(f"while receiving {', '.join(group['names'])}")
            raise

    def watch(self, names: Sequence[str]) -> None:
        """Start watching which names a run binds.

        Parameters
        ----------
        names
            Names that `changes` reports even if they were not bound.
        """
        self._writes = NamespaceDiff(self.names)
        self._watched = names

    def changes(self) -> dict[str, bool]:
        """Return the names bound since `watch`, and the watched ones that were not.

        Returns
        -------
        dict
            ``True`` for a name that was bound to another object, ``False`` for a watched name that
            is still bound to the same object.
        """
        self._modules.record_imports(self._since)
        received_objects.drop_unused()
        there = dict.fromkeys((name for name in self._watched if name in self.names), False)
        return {**there, **dict.fromkeys(self._writes.changed(), True)}

    def pack(self, value: Any, run: str, everyone: Sequence[int]) -> Packed:
        """Pack a call's return value for the notebook.

        Parameters
        ----------
        value
            The value.
        run, everyone
            The run, and the ranks that return a value.
        """
        name = "the returned value"
        with self._gatherer.gathered(run, everyone, {name: value}, [name]) as files:
            pickled = pickling.dump(value, name, to_notebook=True, whole=files.whole)
            return self._pack(pickled, files)

    def pack_names(
        self, wanted: Sequence[str], asked: Sequence[str], run: str, everyone: Sequence[int]
    ) -> Packed | None:
        """Pack the values of names, for the notebook; ``None`` if none of this rank is wanted.

        Parameters
        ----------
        wanted
            The names that this rank is asked for. A name followed by ``:state`` asks for the state
            dictionary of its value.
        asked
            The names that any rank of the run is asked for: this rank helps to gather their values.
        run, everyone
            The run, and the ranks that take part in it.

        Raises
        ------
        NameError
            If a name does not exist.
        """
        values = {name: self._found(name) for name in asked if _name(name) in self.names}
        with self._gatherer.gathered(run, everyone, values, wanted) as files:
            if not wanted:
                return None
            if missing := [name for name in map(_name, wanted) if name not in self.names]:
                names = ", ".join(dict.fromkeys(missing))
                raise NameError(f"{names} was asked for, but there is no such name on this rank")
            whole = {name: _whole(name, values[name], files) for name in wanted}
            pickled = pickling.dump(whole, names=wanted, to_notebook=True, whole=files.whole)
            tokens = received_objects.give(pickled.memo)
            numbers: PackedTokens = {"first": tokens.first, "known": dict(tokens.known)}
            return {**self._pack(pickled, files), "tokens": numbers}

    def _found(self, asked: str) -> Any:
        """Return the value to gather for a requested name."""
        value = self.names[_name(asked)]
        if asked == _name(asked) or sharded.is_model(value):
            return value
        # An object with a state dictionary of its own, like an optimizer.
        return value.state_dict() if hasattr(value, "state_dict") else value

    def _pack(self, pickled: Pickled, files: GatheredFiles) -> Packed:
        packed, parts = blobs.pack(pickled, files.digests)
        for key, data in parts.items():
            path = self._folder / key
            if path.exists():
                continue
            if gathered := files.take(key):
                gathered.rename(path)
                continue
            # Ranks of a node may write the same blob at once; each rename yields a complete one.
            # The agent removes the unfinished files of this process if it is killed.
            part = path.with_name(f"{os.getpid()}-{uuid.uuid4().hex}.part")
            try:
                part.write_bytes(data)
                part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return packed


_HOLDER = 3


def _order(value: Any) -> int:
    """Return a number that is larger for what refers to the others."""
    kinds = (sharded.is_model, optimizers.is_optimizer, optimizers.is_schedule)
    return next((order for order, is_kind in enumerate(kinds) if is_kind(value)), _HOLDER)


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


def _relink(places: Sequence[tuple[dict[Any, Any], Any]], others: Mapping[int, Any]) -> None:
    """Have what was received, like a list or a trainer, refer to what is here.

    Parameters
    ----------
    places
        Where it is now: dictionaries, each with a key.
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


def _name(asked: str) -> str:
    return asked.partition(":")[0]


def _whole(asked: str, value: Any, files: GatheredFiles) -> Any:
    """Return the value to pickle for a requested name."""
    if asked == _name(asked):
        return value
    if sharded.is_model(value):
        return sharded.state_dict(value, files.whole)
    if isinstance(value, dict):
        return value
    raise UsageError(
        f"{asked} asks for a state dictionary, and {_name(asked)}, of type "
        f"{type(value).__name__}, has none: ask for {_name(asked)}."
    )


def own_frames(traceback: TracebackType | None) -> int:
    """Return how many of the outermost frames are ours or the import system's."""
    count = 0
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        count += 1
        traceback = traceback.tb_next
    return count


_PACKAGE = str(Path(jupyter_sky.__file__).parent)


def _is_ours(file: str) -> bool:
    return file.startswith((_PACKAGE, "<frozen importlib")) or file.endswith(
        ("autoreload.py", "importlib/__init__.py")
    )
