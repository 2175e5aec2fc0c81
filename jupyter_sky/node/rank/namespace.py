"""The user's names on a rank: what the notebook sends is bound, what it asks for is packed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jupyter_sky
from jupyter_sky.analysis.namespace_diff import NamespaceDiff
from jupyter_sky.node.rank.module_reloader import ModuleReloader, file_clock
from jupyter_sky.serialization import blobs, cell_sources, pickling
from jupyter_sky.serialization.object_tokens import Tokens, received_objects
from jupyter_sky.serialization.pickling import Pickled
from jupyter_sky.transport.protocol.messages import NameGroup, Packed


class Namespace:
    """The user's names on a rank.

    Parameters
    ----------
    names
        The namespace of its shell.
    folder
        Where the node's blobs are.

    Attributes
    ----------
    arrived
        The shipments of the present run that were bound (`messages.NameGroup`).
    """

    def __init__(self, names: dict[str, Any], folder: Path) -> None:
        self.names = names
        self._folder = folder
        self._modules = ModuleReloader()
        self._modules.record_imports(since=0)
        # Objects hold on to their class, but not every class that is sent has objects yet.
        self._classes: dict[str, type] = {}
        self._writes = NamespaceDiff(names)
        self._watched: Sequence[str] = ()
        self._since = 0
        self.arrived: list[str] = []

    def receive(self, groups: Sequence[NameGroup], outdated: Iterable[str] = ()) -> None:
        """Bind what the notebook sent, and reload those of the user's modules that were edited.

        Parameters
        ----------
        groups
            What it sent.
        outdated
            Names to delete: the notebook has assigned other values, which are not needed now.
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
        self._modules.reload_edited(self.names)
        for group in groups:
            if group["kind"] != "source":
                self._bind(group)
                self.arrived.append(group["shipment"])

    def _bind(self, group: NameGroup) -> None:
        cell_sources.register(group["cells"])
        received = self._load(group)
        values = received if group["together"] else [received]
        bound = dict(zip(group["names"], values, strict=True))
        if group["kind"] == "class":
            self._classes.update(bound)
            return
        self.names.update(bound)

    def _load(self, group: NameGroup) -> Any:
        tokens = None if group["tokens"] is None else Tokens(*group["tokens"])
        try:
            return blobs.unpack(group["packed"], self._folder, tokens)
        except BaseException as error:
            error.add_note(f"while receiving {', '.join(group['names'])}")
            raise

    def watch(self, names: Sequence[str]) -> None:
        """Watch what a run binds.

        Parameters
        ----------
        names
            Names of which `changes` also says whether they exist.
        """
        self._writes = NamespaceDiff(self.names)
        self._watched = names

    def changes(self) -> dict[str, bool]:
        """Return names that were bound since `watch`, and of its names those that were not.

        Returns
        -------
        dict
            ``True`` for a name that stands for another object than before, ``False`` for one of the
            watched names that stands for the same.
        """
        self._modules.record_imports(self._since)
        received_objects.drop_unused()
        there = dict.fromkeys((name for name in self._watched if name in self.names), False)
        return {**there, **dict.fromkeys(self._writes.changed(), True)}

    def pack(self, value: Any) -> Packed:
        """Pack a value that a call returned, for the notebook."""
        return self._pack(pickling.dump(value, "the returned value", to_notebook=True))

    def pack_names(self, wanted: Sequence[str]) -> Packed | None:
        """Pack the values of names, for the notebook; ``None`` if no name is wanted.

        Raises
        ------
        NameError
            When a name does not exist.
        """
        if not wanted:
            return None
        if missing := [name for name in wanted if name not in self.names]:
            names = ", ".join(missing)
            raise NameError(f"{names} was asked for, but there is no such name on this rank")
        values = {name: self.names[name] for name in wanted}
        pickled = pickling.dump(values, names=wanted, to_notebook=True)
        tokens = received_objects.tokens(pickled.memo)
        return {**self._pack(pickled), "tokens": tokens}

    def _pack(self, pickled: Pickled) -> Packed:
        packed, parts = blobs.pack(pickled)
        for key, data in parts.items():
            path = self._folder / key
            if not path.exists():
                # Ranks of one node may write the same blob at once; each rename puts a whole one.
                # The agent removes what this process leaves unfinished if it is killed.
                part = path.with_name(f"{os.getpid()}-{uuid.uuid4().hex}.part")
                try:
                    part.write_bytes(data)
                    part.rename(path)
                except BaseException:
                    part.unlink(missing_ok=True)
                    raise
        return packed


def own_frames(traceback: TracebackType | None) -> int:
    """Return how many of the outermost frames are ours, or of what loads modules for us."""
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
