"""The user's names on a rank: binds what the notebook sends, packs what it asks for."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jupyter_sky
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.errors import UsageError
from jupyter_sky.node.blobs.partial_blob import NO_ROOM, write_blob
from jupyter_sky.node.rank.namespace import attributes
from jupyter_sky.node.rank.namespace.counterparts import counterparts
from jupyter_sky.node.rank.namespace.gathering import GatheredFiles, Gatherer, no_room
from jupyter_sky.node.rank.namespace.module_reloader import ModuleReloader
from jupyter_sky.node.rank.namespace.takeover.classes import take_over_data
from jupyter_sky.node.rank.namespace.takeover.takeover import Takeover
from jupyter_sky.serialization import blobs, cell_sources, garbage, pickling
from jupyter_sky.serialization.changes.classes import not_filled, refill
from jupyter_sky.serialization.models import hooks, sharded
from jupyter_sky.serialization.models.torch_kinds import is_module
from jupyter_sky.serialization.object_tokens.received import received_objects
from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.process.module_attributes import AS_IMPORTED
from jupyter_sky.serialization.reducers.memory_maps import copied_unless_seen
from jupyter_sky.transport.blobs.packed import Packed, PackedTokens
from jupyter_sky.transport.protocol.messages import NameGroup


class Namespace:
    """The user's names on a rank.

    Parameters
    ----------
    names
        The namespace of its shell.
    folder
        The folder of the node's blobs.
    spill
        The one on disk for those for which there is no room there; ``None`` for no such folder.
    gatherer
        Gathers values that are sharded over the ranks.

    Attributes
    ----------
    arrived
        The shipments that were bound for the present run (see `messages.NameGroup`).
    shares_files
        Whether the notebook sees the files of this node.
    """

    def __init__(
        self, names: dict[str, Any], folder: Path, spill: Path | None, gatherer: Gatherer
    ) -> None:
        self.names = names
        self._folder, self._spill = folder, spill
        self._gatherer = gatherer
        self._modules = ModuleReloader()
        self._modules.record_imports(since=0)
        # Objects keep their class alive, but a class that was sent may have no objects yet.
        self._classes: dict[str, type] = {}
        self._received: weakref.WeakSet[type] = weakref.WeakSet()
        self._writes = NamespaceDiff({})
        self._attributes: set[str] = set()  # those of modules that the notebook has set
        self._watched: Sequence[str] = ()
        self._models: dict[str, weakref.ref[Any]] = {}
        self._since = 0
        self._held: list[Any] = []
        self.arrived: list[str] = []
        self.shares_files = True
        hooks.number_apart()

    def begin_run(self, outdated: Sequence[str]) -> None:
        """Delete names that are outdated: the notebook has other values, which are not needed."""
        if outdated:
            self._hold()
        for name in outdated:
            self.names.pop(name, None)
        self.arrived = []

    def receive(self, groups: Sequence[NameGroup], cell: str | None = None) -> None:
        """Bind the names that the notebook sent, and reload the user's edited modules.

        Parameters
        ----------
        groups
            The names.
        cell
            The cell that runs next, as `ModuleReloader.check` takes it.
        """
        self._since = time.time_ns()
        received_objects.drop_unused()
        try:
            if groups:
                self._hold()
                self._receive(groups)
            else:  # as for most cells
                self._modules.reload_edited(self.names, self._attributes)
            self._modules.check(self.names, cell)
        finally:
            self._held = []
            received_objects.unpin(self.names)

    def _hold(self) -> None:
        """Hold what names stand for: what is received may refer to it, and take its name."""
        if not self._held:
            self._held = [*self.names.values()]
            received_objects.pin()

    def _receive(self, groups: Sequence[NameGroup]) -> None:
        # Not as its decorator, whose frame would be in the user's traceback.
        with garbage.not_searched_for():
            for group in groups:
                if group["kind"] == "setting":
                    self._load(group).install(self._folder)
                    self.arrived.append(group["shipment"])
            # Files that were just written are not edits: nothing was imported from them before.
            self._since = time.time_ns()
            self._modules.reload_edited(self.names, self._attributes)
            for group in groups:
                if group["kind"] != "setting":
                    self._bind(group)
                    self.arrived.append(group["shipment"])

    def _bind(self, group: NameGroup) -> None:
        cell_sources.register(group["cells"])
        received_objects.forget_former()
        if group["kind"] == "class":
            self._bind_classes(group)
            return
        received = self._load(group)
        values = received if group["together"] else [received]
        bound = dict(zip(group["names"], values, strict=True))
        Takeover(bound, self._present).apply(group.get("changes", {}))
        received_objects.forget_former()
        for name in [each for each in bound if ":" in each]:
            value = bound.pop(name)
            if attributes.get(name) is not value:  # like a function, which is imported
                attributes.put(name, value)
                is_set = value is not AS_IMPORTED
                (self._attributes.add if is_set else self._attributes.discard)(name)
        self.names.update(bound)
        received_objects.settle(bound)
        self._received.update(each for each in values if isinstance(each, type))

    def _bind_classes(self, group: NameGroup) -> None:
        changes = group.get("changes", {})
        with not_filled(each.partition(" ")[2] for each in changes) as states:
            bound = dict(zip(group["names"], self._load(group), strict=True))
        if states:
            take_over_data(bound, states, changes)
        self._classes.update(bound)
        for key in group["by_name"]:
            self._bind_class(bound[key])
        self._received.update(bound.values())
        received_objects.settle({})

    def _present(self, name: str) -> Any:
        """Return what a name stands for now, which may be that of an attribute of a module."""
        return attributes.get(name) if ":" in name else self.names.get(name)

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
        self._models = {
            name: weakref.ref(self.names[name]) for name in names if is_module(self.names.get(name))
        }

    def changes(self) -> dict[str, bool]:
        """Return the names bound since `watch`, and the watched ones that were not; end watching.

        Returns
        -------
        dict
            ``True`` for a name that was bound to another object, ``False`` for a watched name that
            is still bound to the same object, or to a wrapper of the same model.
        """
        self._modules.record_imports(self._since)
        received_objects.drop_unused()
        there = dict.fromkeys((name for name in self._watched if name in self.names), False)
        others = {name for name in self._writes.changed() if not self._is_wrapped(name)}
        self._writes, self._watched = NamespaceDiff({}), ()  # if the next run cannot begin
        return {**there, **dict.fromkeys(others, True)}

    def _is_wrapped(self, name: str) -> bool:
        """Return whether a name stands for its former model, as after ``model = DDP(model)``."""
        value, former = self.names.get(name), self._models[name]() if name in self._models else None
        is_model = former is not None and is_module(value)
        return is_model and sharded.unwrapped(value) is sharded.unwrapped(former)

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
        gathered = self._gatherer.gathered(run, everyone, {name: value}, [name])
        with gathered as files, copied_unless_seen(self.shares_files):
            pickled = pickling.dump(value, name, to_notebook=True, whole=files.whole)
            return self._pack(name, pickled, files)

    @garbage.not_searched_for()
    def pack_names(
        self,
        wanted: Sequence[str],
        asked: Sequence[str],
        of_one: Sequence[str],
        run: str,
        everyone: Sequence[int],
    ) -> Packed | None:
        """Pack the values of names, for the notebook; ``None`` if none of this rank is wanted.

        Parameters
        ----------
        wanted
            The names that this rank is asked for. A name followed by ``:state`` asks for the state
            dictionary of its value.
        asked
            The names that any rank of the run is asked for: this rank helps to gather their values.
        of_one
            Those of them that only one rank is asked for: the value counts for all of them.
        run, everyone
            The run, and the ranks that take part in it.

        Raises
        ------
        NameError
            If a name does not exist.
        """
        values = {name: self._found(name) for name in asked if _name(name) in self.names}
        common = {name: self.names[name] for name in of_one if name in self.names}
        gathered = self._gatherer.gathered(run, everyone, values, wanted)
        with gathered as files, copied_unless_seen(self.shares_files):
            if not wanted:
                received_objects.give({}, counterparts(run, common))
                received_objects.settle(common)
                return None
            if missing := [name for name in map(_name, wanted) if name not in self.names]:
                names = ", ".join(dict.fromkeys(missing))
                raise NameError(f"{names} was asked for, but there is no such name on this rank")
            whole = {name: _whole(name, values[name], files) for name in wanted}
            # Of several ranks that are asked, the first one says what the notebook's class becomes.
            classes = whole.values() if self._gatherer.rank == min(everyone) else ()
            refilled = {kind: refill for kind in classes if isinstance(kind, type)}
            pickled = pickling.dump(
                whole, names=wanted, to_notebook=True, whole=files.whole, refilled=refilled
            )
            tokens = received_objects.give(pickled.memo, counterparts(run, common))
            received_objects.settle(
                common | {name: self.names[name] for name in map(_name, wanted)}
            )
            numbers: PackedTokens = {"first": tokens.first, "known": dict(tokens.known)}
            packed = self._pack(", ".join(wanted), pickled, files)
            return {**packed, "tokens": numbers}

    def _found(self, asked: str) -> Any:
        """Return the value to gather for a requested name."""
        value = self.names[_name(asked)]
        if asked == _name(asked) or is_module(value):
            return value
        # An object with a state dictionary of its own, like an optimizer.
        return value.state_dict() if hasattr(value, "state_dict") else value

    def _pack(self, names: str, pickled: Pickled, files: GatheredFiles) -> Packed:
        packed, parts = blobs.pack(pickled, files.digests)
        for key, data in parts.items():
            path = self._folder / key
            if path.exists():
                continue
            if gathered := files.take(key):
                gathered.rename(path)
                continue
            try:
                write_blob(path, data, self._spill)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                raise no_room(names, data.nbytes, error) from None
        return {**packed, "cells": dict(pickled.cells)} if pickled.cells else packed


def _name(asked: str) -> str:
    return asked.partition(":")[0]


def _whole(asked: str, value: Any, files: GatheredFiles) -> Any:
    """Return the value to pickle for a requested name."""
    if asked == _name(asked):
        return value
    if is_module(value):
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
    starts = (_PACKAGE, "<frozen importlib")
    return file.startswith(starts) or file.endswith("importlib/__init__.py")
