"""Pickling of values, for namespaces and results.

On top of cloudpickle, four things:

- large arrays and tensors stay where they are, as out-of-band buffers (pickle protocol 5);
- functions and classes of ``__main__`` travel without the globals that they use. They are bound to
  the receiver's ``__main__``, as a notebook's function is to its notebook, and the names that they
  need are reported, so that the sender can send those as names;
- a class of ``__main__`` is one class on each side, however often it or an instance travels;
- what cannot be pickled is named with the path to it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_sky.serialization import object_tokens
from jupyter_sky.serialization.diagnosis import obstacle
from jupyter_sky.serialization.object_tokens import Tokens
from jupyter_sky.serialization.pickler import (
    LinkingPickler,
    Pickled,
    Pickler,
    class_identity,
    main_namespace,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Pickled",
    "class_identity",
    "dump",
    "enclose",
    "link",
    "load",
    "load_with_memo",
    "main_namespace",
]


def dump(
    value: Any,
    name: str = "this value",
    *,
    names: Sequence[str] = (),
    describe: Collection[str] | None = None,
    bare: bool = False,
    back: bool = False,
    used_by: str | None = None,
) -> Pickled:
    """Pickle ``value``.

    Parameters
    ----------
    value
        Anything that cloudpickle takes.
    name
        What a person calls it, for the sentence when it cannot be pickled.
    names
        If it is a list or a dictionary of the person's values, what they call those.
    describe
        The classes of ``__main__`` that are described in the pickle, by their identity. Others are
        only named: the receiver has to have them. ``None`` is for all.
    bare
        Leave out what objects have computed and could compute again, to see whether they changed.
    back
        Whether it is on its way to the notebook.
    used_by
        The function of the person's that uses it, if nobody named it.

    Raises
    ------
    UsageError
        When it cannot be pickled, with the path to the part that is in the way.
    """
    try:
        return Pickler(value, describe, bare, back).run()
    except Exception as error:
        culprit, found = value, error
        parts = value.values() if isinstance(value, dict) else value
        for part, title in zip(parts if names else (), names, strict=True):
            try:
                _attempt(part)
            except Exception as inner:
                culprit, name, found = part, title, inner
                break
        raise obstacle(culprit, name, found, _attempt, back=back, used_by=used_by) from error


def link(values: Sequence[Any], tokens: Mapping[int, int]) -> Pickled:
    """Pickle values that share objects with what the receiver has; see ``enclose``.

    Parameters
    ----------
    values
        What was pickled without error before.
    tokens
        The tokens of objects that the receiver has, by identity.
    """
    return LinkingPickler(tuple(values), tokens).run()


def enclose(linked: Pickled, values: Sequence[Any], tokens: Tokens) -> Pickled:
    """Return a pickle that can be loaded of what was linked.

    Parameters
    ----------
    linked
        What ``link`` made of the values.
    values
        The values, which travel as copies too, for when an object is not there any more.
    tokens
        Those of the objects in the linked pickle.
    """
    return Pickler(_Linked(tokens, linked, tuple(values)), describe=()).run()


class _Linked:
    def __init__(self, tokens: Tokens, linked: Pickled, copies: tuple[Any, ...]) -> None:
        self._tokens = tokens
        self._linked = linked
        self._copies = copies

    def __reduce__(self) -> Any:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self._linked.buffers]
        return object_tokens.restore, (self._tokens, self._linked.stream, buffers, self._copies)


def load(stream: Buffer, buffers: Iterable[Buffer] = (), tokens: Tokens | None = None) -> Any:
    """Return the value that ``dump`` pickled; arrays lie in ``buffers``, without a copy.

    Parameters
    ----------
    stream, buffers
        What ``dump`` made.
    tokens
        Those of the objects in it, if what comes later may refer to them.
    """
    if tokens is None:
        return pickle.loads(stream, buffers=buffers)
    value, memo = load_with_memo(stream, buffers)
    object_tokens.arrivals.note(tokens, memo)
    return value


def load_with_memo(stream: Buffer, buffers: Iterable[Buffer] = ()) -> tuple[Any, Mapping[int, Any]]:
    """Return the value that ``dump`` pickled, and every object in it by its place in the memo."""
    unpickler = pickle.Unpickler(io.BytesIO(stream), buffers=buffers)
    value = unpickler.load()
    return value, unpickler.memo.copy()


def _attempt(part: Any) -> None:
    Pickler(part).run()
