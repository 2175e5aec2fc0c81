"""Pickling of values, for namespaces and results.

It differs from cloudpickle in four ways:

- large arrays and tensors are not copied, but become out-of-band buffers (pickle protocol 5);
- functions and classes of ``__main__`` are pickled without the globals that they use. They look
  these up in the receiver's ``__main__``, as a notebook's function does in its notebook; the sender
  is told the names (`Pickled.needs`), and sends their values under these names;
- a class of ``__main__`` is one class on each side, however often it or an instance is sent;
- the error for what cannot be pickled names the path to it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.diagnosis import explain_failure
from jupyter_sky.serialization.models.sharded import NOTHING, Whole
from jupyter_sky.serialization.object_tokens import received
from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.pickler import (
    FillClass,
    LinkingPickler,
    Pickler,
    class_identity,
    main_namespace,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "class_identity",
    "dump",
    "dump_linked",
    "load",
    "load_with_memo",
    "main_namespace",
    "relink",
    "with_copies",
]


def dump(
    value: Any,
    name: str = "this value",
    *,
    names: Sequence[str] = (),
    classes_by_value: Collection[str] | None = None,
    without_caches: bool = False,
    to_notebook: bool = False,
    used_by: str | None = None,
    whole: Whole = NOTHING,
    refilled: Mapping[type, FillClass] = MappingProxyType({}),
) -> Pickled:
    """Pickle ``value``.

    Parameters
    ----------
    value
        Anything that cloudpickle accepts.
    name
        Its name for the user, for the error message if it cannot be pickled.
    names
        If it is a list or a dictionary of the user's values, their names.
    classes_by_value
        Identities of the classes of ``__main__`` to pickle by value. Others are pickled by
        reference: the receiver must have them. ``None`` for all.
    without_caches
        Whether to leave out cached values that objects can compute again. Such a pickle tells
        whether a value has changed.
    to_notebook
        Whether the value is sent to the notebook.
    used_by
        The user's function that uses the value, if the cell itself does not.
    whole
        The whole tensors to put in the place of sharded ones.
    refilled
        How the notebook changes classes that it has, if it does not leave them as they are.

    Raises
    ------
    UsageError
        If it cannot be pickled, with the path to the failing part, of each name.
    """

    def attempt(part: Any) -> None:
        Pickler(part, whole=whole).run()

    try:
        return Pickler(value, classes_by_value, without_caches, to_notebook, whole, refilled).run()
    except Exception as error:
        failing: list[tuple[Any, str, Exception]] = []
        parts = value.values() if isinstance(value, dict) else value
        for part, title in zip(parts if names else (), names, strict=True):
            try:
                attempt(part)
            except Exception as inner:
                failing.append((part, title, inner))
        reasons = [
            explain_failure(*each, attempt, to_notebook=to_notebook, used_by=used_by)
            for each in failing or [(value, name, error)]
        ]
        raise UsageError("\n".join(map(str, reasons))) from error


def dump_linked(
    values: Sequence[Any],
    tokens: Mapping[int, int],
    classes_by_value: Collection[str] = (),
    *,
    without_caches: bool = False,
) -> Pickled:
    """Pickle values that share objects with values of the receiver; see `with_copies`.

    Parameters
    ----------
    values
        Values that were pickled without error before.
    tokens
        The tokens of objects that the receiver has, by identity.
    classes_by_value, without_caches
        As for `dump`.
    """
    return LinkingPickler(tuple(values), tokens, classes_by_value, without_caches).run()


def relink(values: Sequence[Any], others: Mapping[int, Any]) -> tuple[list[Any], dict[int, Any]]:
    """Return copies of values that refer to other objects, wherever in them that is.

    Parameters
    ----------
    values
        Values that were unpickled here.
    others
        What takes the place of what, by the identity of that.

    Returns
    -------
    list
        The copies.
    dict
        All objects in them, by the identity of those that they are copies of.
    """
    numbers = {identity: number for number, identity in enumerate(others)}
    pickled = dump_linked(values, numbers)
    unpickler = _Unpickler(io.BytesIO(pickled.stream), buffers=pickled.buffers)
    unpickler.objects = [*others.values()]
    copies, memo = unpickler.load(), unpickler.memo.copy()
    places = pickled.memo.items()
    return [*copies], {key: memo[index] for key, (index, _) in places if index in memo}


class _Unpickler(pickle.Unpickler):
    objects: Sequence[Any] = ()

    def persistent_load(self, number: int) -> Any:
        return self.objects[number]


def with_copies(
    linked: Pickled, values: Sequence[Any], tokens: Tokens, classes_by_value: Collection[str] = ()
) -> Pickled:
    """Return a pickle that can be loaded whether or not the receiver still has the objects.

    Parameters
    ----------
    linked
        The result of `dump_linked` for the values.
    values
        The values, which are also pickled whole, to be loaded if a shared object is gone.
    tokens
        The tokens of the objects in ``linked``.
    classes_by_value
        As for `dump_linked`.
    """
    return Pickler(_Linked(tokens, linked, tuple(values)), classes_by_value).run()


class _Linked:
    def __init__(self, tokens: Tokens, linked: Pickled, copies: tuple[Any, ...]) -> None:
        self._tokens = tokens
        self._linked = linked
        self._copies = copies

    def __reduce__(self) -> Any:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self._linked.buffers]
        stream, plain = self._linked.stream, self._linked.plain
        arguments = self._tokens, stream, buffers, self._copies, plain
        return received.load_with_tokens, arguments


def load(stream: Buffer, buffers: Iterable[Buffer] = (), tokens: Tokens | None = None) -> Any:
    """Return the value that ``dump`` pickled; arrays use ``buffers`` without a copy.

    Parameters
    ----------
    stream, buffers
        The result of ``dump``.
    tokens
        The tokens of the objects in it, if later pickles may refer to them.
    """
    if tokens is None:
        return pickle.loads(stream, buffers=buffers)
    value, memo = load_with_memo(stream, buffers)
    received.received_objects.record(tokens, memo, value)
    return value


def load_with_memo(stream: Buffer, buffers: Iterable[Buffer] = ()) -> tuple[Any, Mapping[int, Any]]:
    """Return the value that ``dump`` pickled, and every object in it by its index in the memo."""
    unpickler = pickle.Unpickler(io.BytesIO(stream), buffers=buffers)
    value = unpickler.load()
    return value, unpickler.memo.copy()
