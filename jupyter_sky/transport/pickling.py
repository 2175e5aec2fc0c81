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

import dis
import io
import linecache
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import blake3
import cloudpickle
from cloudpickle import cloudpickle as _internals

from jupyter_sky.transport import sharing
from jupyter_sky.transport.obstacles import obstacle
from jupyter_sky.transport.reducers import reduce, reduce_cell
from jupyter_sky.transport.sharing import Token

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True)
class Pickled:
    """A pickled value.

    Attributes
    ----------
    stream
        The pickle itself.
    buffers
        The contiguous memory of large arrays and tensors that the pickle refers to, in order.
    needs
        Names of ``__main__`` that functions and classes in the value use.
    modules
        Modules that functions and classes in the value are imported from.
    classes
        Classes of ``__main__`` in the value that are named in the pickle, but not described.
    sources
        Source text of the notebook's cells that functions in the value come from, by file name,
        for tracebacks.
    """

    stream: bytes
    buffers: tuple[memoryview, ...] = ()
    needs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    classes: Mapping[str, type] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    _pickler: Any = field(default=None, repr=False, compare=False)
    _value: Any = field(default=None, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.stream) + sum(buffer.nbytes for buffer in self.buffers)

    @cached_property
    def memo(self) -> dict[int, tuple[int, Any]]:
        """Every object in the value by identity, with its place in the pickle's memo."""
        return self._pickler.memo.copy() if self._pickler else {}

    @cached_property
    def shared(self) -> dict[int, tuple[int, Any]]:
        """The objects in the value that other values may have as well, as in ``memo``."""
        memo = self.memo
        if len(memo) > sharing.MOST:  # bulk data; only the value itself counts
            memo = {id(self._value): memo[id(self._value)]} if id(self._value) in memo else {}
        return {key: entry for key, entry in memo.items() if sharing.is_mutable(entry[1])}


class _MainNamespace:
    """Stands for the receiver's ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


def main_namespace() -> dict[str, Any]:
    """Return the globals of ``__main__``: the notebook's names, or a rank's."""
    return vars(sys.modules["__main__"])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one value.

    Parameters
    ----------
    value
        What will be dumped.
    apart
        Whether classes of ``__main__`` in it are only named; ``value`` itself is described always.
    """

    def __init__(self, value: Any, *, apart: bool = False) -> None:
        self.file = io.BytesIO()
        self.buffers: list[memoryview] = []
        super().__init__(
            self.file,
            protocol=5,
            buffer_callback=lambda buffer: self.buffers.append(buffer.raw()),
        )
        self.needs: set[str] = set()
        self.modules: set[str] = set()
        self.classes: dict[str, type] = {}
        self.files: set[str] = set()
        self._value = value
        self._apart = apart
        self._main = main_namespace()
        # Cloudpickle keeps here what stands for the globals of a function in the pickle.
        self.globals_ref[id(self._main)] = _MainNamespace()

    def run(self) -> Pickled:
        """Dump the value."""
        self.dump(self._value)
        return Pickled(
            self.file.getvalue(),
            tuple(self.buffers),
            frozenset(self.needs),
            frozenset(self.modules),
            self.classes,
            {name: text for name in self.files if (text := _cell_source(name))},
            self,
            self._value,
        )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            self._note_module(obj.__module__)
            if obj.__module__ == "__main__":
                identity = class_identity(obj)
                if self._apart and obj is not self._value:
                    self.classes[identity] = obj
                    return _class_named, (identity,)
            return _settled(obj, super().reducer_override(obj))
        if isinstance(obj, types.FunctionType):
            self._note_module(obj.__module__)
        elif isinstance(obj, types.ModuleType):
            self._note_module(obj.__name__)
        elif isinstance(obj, types.CellType):
            return reduce_cell(obj)
        else:
            reduced = reduce(obj)
            if reduced is NotImplemented and self._apart and type(obj).__module__ == "__main__":
                reduced = _without_cached(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    def _note_module(self, name: Any) -> None:
        if isinstance(name, str):
            self.modules.add(name)

    def _function_getnewargs(self, function: types.FunctionType) -> Any:
        # Cloudpickle would give each function cells of its own.
        *arguments, _ = super()._function_getnewargs(function)
        return *arguments, function.__closure__

    def _dynamic_function_reduce(self, function: types.FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(function)
        attributes = reduced[2][1]
        attributes["__closure__"] = None
        self.modules.update(_imported_in(function.__code__))
        if function.__globals__ is self._main:
            self.needs.update(attributes["__globals__"])
            self.files.add(function.__code__.co_filename)
            attributes["__globals__"] = {}
        return reduced


class _LinkingPickler(_Pickler):
    def __init__(self, value: Any, tokens: Mapping[int, Token]) -> None:
        super().__init__(value)
        self._tokens = tokens

    def persistent_id(self, obj: Any) -> Token | None:
        return self._tokens.get(id(obj))


def dump(
    value: Any,
    name: str = "this value",
    *,
    names: Sequence[str] = (),
    apart: bool = False,
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
    apart
        Name the classes of ``__main__`` in it rather than describe them, to see whether the value
        changed itself. What is to be loaded again needs them.
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
        return _Pickler(value, apart=apart).run()
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


def dump_linked(values: Sequence[Any], shipment: str, tokens: Mapping[int, Token]) -> Pickled:
    """Pickle values that share objects with what the receiver has.

    Parameters
    ----------
    values
        What was pickled without error before.
    shipment
        The name of the shipment.
    tokens
        The tokens of objects that the receiver has, by identity.
    """
    linked = _LinkingPickler(tuple(values), tokens).run()
    whole = _Pickler(_Linked(shipment, linked, tuple(values))).run()
    object.__setattr__(whole, "_pickler", linked._pickler)
    return whole


def reached(values: Sequence[Any], tokens: Mapping[int, Token]) -> set[int]:
    """Return the objects that ``dump_linked`` would describe, by identity."""
    return set(_LinkingPickler(tuple(values), tokens).run().memo)


class _Linked:
    def __init__(self, shipment: str, linked: Pickled, copies: tuple[Any, ...]) -> None:
        self._shipment = shipment
        self._linked = linked
        self._copies = copies

    def __reduce__(self) -> Any:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self._linked.buffers]
        return sharing.restore, (self._shipment, self._linked.stream, buffers, self._copies)


def load(stream: Buffer, buffers: Iterable[Buffer] = (), shipment: str | None = None) -> Any:
    """Return the value that ``dump`` pickled; arrays lie in ``buffers``, without a copy.

    Parameters
    ----------
    stream, buffers
        What ``dump`` made.
    shipment
        The shipment that it came with, if what comes later may share objects with it.
    """
    if shipment is None:
        return pickle.loads(stream, buffers=buffers)
    value, memo = load_with_memo(stream, buffers)
    sharing.arrivals.note(shipment, memo)
    return value


def load_with_memo(stream: Buffer, buffers: Iterable[Buffer] = ()) -> tuple[Any, Mapping[int, Any]]:
    """Return the value that ``dump`` pickled, and every object in it by its place in the memo."""
    unpickler = pickle.Unpickler(io.BytesIO(stream), buffers=buffers)
    value = unpickler.load()
    return value, unpickler.memo.copy()


# Classes


def class_identity(kind: type) -> str:
    """Return what a class of ``__main__`` is called in pickles.

    A class that can be reached by its name is called after its content, wherever in a cell it
    stands. So the same class that each rank defines for itself is one class in the notebook, and
    one that is defined anew without a change, when its cell is run again, goes on being the class
    of what was made before.
    """
    tracked: str | None = _internals._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(kind)
    if tracked is None and _is_named(kind):
        by_class = _internals._DYNAMIC_CLASS_TRACKER_BY_CLASS
        by_class[kind] = ""  # its own content can mention it
        try:
            content = _IdentityPickler(kind, apart=True).run()
        finally:
            del by_class[kind]
        tracked = blake3.blake3(kind.__qualname__.encode() + content.stream).hexdigest()[:32]
        by_class[kind] = tracked
        _internals._DYNAMIC_CLASS_TRACKER_BY_ID[tracked] = kind
    return tracked or str(_internals._get_or_create_tracker_id(kind))


class _IdentityPickler(_Pickler):
    """Leaves out where code comes from."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            bare = obj.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
            return _internals._code_reduce(bare)
        reduced = super().reducer_override(obj)
        if obj is self._value:
            reduced[2][0].pop("__firstlineno__", None)
        return reduced


def _is_named(kind: type) -> bool:
    found: Any = main_namespace()
    for part in kind.__qualname__.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found is kind


def _settled(kind: type, reduced: Any) -> Any:
    """Correct how cloudpickle takes a class apart: slots that it forgets, caches that it keeps."""
    match reduced:
        case (_, (_, _, _, dict() as creation, *_), (dict() as attributes, _), *_):
            if attributes.get("__slots__"):
                creation["__slots__"] = kind.__dict__["__slots__"]
            attributes.pop("__slotnames__", None)
            if not attributes.get("__annotations__", True):
                del attributes["__annotations__"]
    return reduced


def _without_cached(obj: Any) -> Any:
    """Leave out what an object has computed when it was asked for, and could compute again."""
    attributes = [item for base in type(obj).__mro__[:-1] for item in vars(base).items()]
    computed = {name for name, value in attributes if isinstance(value, cached_property)}
    if not computed:
        return NotImplemented
    match obj.__reduce_ex__(5):
        case (make, arguments, dict() as state, *rest):
            kept = {name: value for name, value in state.items() if name not in computed}
            return make, arguments, kept or None, *rest
    return NotImplemented


def _class_named(identity: str) -> Any:
    return _internals._DYNAMIC_CLASS_TRACKER_BY_ID[identity]


# What else


def _attempt(part: Any) -> None:
    _Pickler(part).run()


_imported: weakref.WeakKeyDictionary[types.CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def _imported_in(code: types.CodeType) -> frozenset[str]:
    """Return the modules that import statements in a function name."""
    names = _imported.get(code)
    if names is None:
        found = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
        inner = [_imported_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        names = _imported[code] = frozenset(found.union(*inner))
    return names


def _cell_source(name: str) -> str | None:
    # A cell has no file that the other side could read; only IPython's cache has its lines.
    entry = linecache.cache.get(name)
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])
