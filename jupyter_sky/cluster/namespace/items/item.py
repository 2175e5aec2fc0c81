"""An item is pickled by itself, which tells what is to be known of it before it is sent.

That is whether it has changed since it was sent (by a digest of its content), what else it needs,
and with which items it shares objects.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.changes import container_changes, model_changes, writes
from jupyter_sky.serialization.changes.container_changes import Contents
from jupyter_sky.serialization.changes.model_changes import HeldModels
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries, is_mutable
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.pickler import in_main
from jupyter_sky.transport.blobs.packed import Packed

CLASS_PREFIX, MODULE_PREFIX = "class ", "module "
"""What the keys of items begin with that are no names."""


class NamespaceItem:
    """What is sent when it has changed: the value of a name, a class, a module, or a setting.

    Parameters
    ----------
    key
        See below.
    value
        The value, the class, or what the receiver is to install.
    digests
        Digests of memory, shared by all items of one update.
    used_by
        The user's function that uses it, if the cell does not name it itself.

    Attributes
    ----------
    key
        The name that it is bound to, or the full name of an attribute (`module_attributes`). Keys
        of other items have a space, so that they are no names: ``"class "`` and the class's
        identity, ``"module "`` and the module's name, or a kind of setting (`process_items`), such
        as ``"import paths"``.
    value
        As above.
    identity
        The identity of what the name is bound to here, where the value only stands for that.
    pickled
        The value, pickled by itself.
    memory_digests
        Its ``digests``.
    """

    def __init__(
        self, key: str, value: Any, digests: blobs.MemoryDigests, used_by: str | None = None
    ) -> None:
        self.key = key
        self.value = value
        self.identity = id(value)
        self.memory_digests = digests
        name = value.__qualname__ if self.is_class else key
        classes = {self.class_identity} if self.is_class else ()
        self.pickled = pickling.dump(
            value, name, classes_by_value=classes, without_caches=True, used_by=used_by
        )

    def under(self, key: str) -> NamespaceItem:
        """Return an item of the same value under another key."""
        item = copy.copy(self)
        item.key = key
        return item

    @property
    def is_name(self) -> bool:
        """Whether it is bound to a name."""
        return " " not in self.key

    @property
    def is_class(self) -> bool:
        """Whether it is a class that other items need."""
        return self.key.startswith(CLASS_PREFIX)

    @property
    def class_identity(self) -> str:
        """The class's identity in pickles."""
        return self.key.removeprefix(CLASS_PREFIX)

    @property
    def is_found_by_name(self) -> bool:
        """Whether it is a class whose name stands for no other value in the notebook.

        The name may stand for a later version of the class, or for what a decorator has made of it,
        as ``@dataclass(slots=True)`` does.
        """
        if not self.is_class:
            return False
        stands_for = in_main(self.value.__qualname__)
        return stands_for is None or stands_for is self.value

    @property
    def kind(self) -> str:
        """What the receiver does with it: ``"name"``, ``"class"`` or ``"setting"``."""
        if self.is_name:
            return "name"
        return "class" if self.is_class else "setting"

    @cached_property
    def packed(self) -> tuple[Packed, dict[str, memoryview]]:
        """The pickle as a message, and its large parts; it refers to classes by identity."""
        return blobs.pack(self.pickled, self.memory_digests)

    @cached_property
    def digest(self) -> str:
        """The digest of its content, and of how often the notebook has written to its tensors."""
        return writes.digest_of_packed(self.packed[0], self.pickled.shared)

    @cached_property
    def models(self) -> HeldModels | None:
        """The models and optimizers of the value."""
        if not self.is_name:
            return None
        return model_changes.held(self.value, self.pickled.shared, self.memory_digests)

    @property
    def objects(self) -> MemoEntries:
        """The objects in it that other values may share, and the class itself."""
        itself = {id(self.value): (0, self.value)} if self.is_class else {}
        return {**self.pickled.shared, **itself}

    def contents(self, numbers: Mapping[int, int]) -> Contents | None:
        """Return what is in the class, or in containers of the value; these are their tokens."""
        if not (self.is_name or self.is_class):
            return None
        models = self.models.models if self.models else ()
        return container_changes.contents(self.value, numbers, models, self.memory_digests)

    def known_contents(self, sent_objects: SentObjects) -> Contents | None:
        """Return what is in the containers of a value that ranks have."""
        return self.contents(sent_objects.tokens_of(self.objects))

    def size(self, without: Collection[str]) -> int:
        """Return the bytes of the pickle and of its large parts; some parts are not counted.

        Parameters
        ----------
        without
            The digests of parts that are not counted.
        """
        message, parts = self.packed
        inline = [
            part for part in (message["stream"], *message["buffers"]) if isinstance(part, bytes)
        ]
        large = [part.nbytes for key, part in parts.items() if key not in without]
        return sum(map(len, inline)) + sum(large)

    @property
    def loadable(self) -> Pickled:
        """The pickle that is sent; its receiver has to load the classes in it first."""
        if self.pickled.omitted:
            return pickling.dump(self.value, classes_by_value=())
        return self.pickled


def may_share(value: Any) -> bool:
    """Return whether a value may share an object with another one, as far as its type tells."""
    if isinstance(value, type):
        return value.__module__ == "__main__"
    return is_mutable(value) or isinstance(value, (tuple, FunctionType, MethodType))


def class_key(value: Any) -> str | None:
    """Return the key of a class of the notebook; ``None`` for any other value."""
    if not isinstance(value, type) or value.__module__ != "__main__":
        return None
    with suppress(Exception):  # of any kind: it cannot be pickled
        return CLASS_PREFIX + pickling.class_identity(value)
    return None
