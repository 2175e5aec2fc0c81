"""The pickler: cloudpickle's, with what pickles of a notebook's values need beside it."""

from __future__ import annotations

import dis
import io
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import blake3
import cloudpickle
from cloudpickle import cloudpickle as _internals

from jupyter_sky.serialization import cell_sources, object_tokens
from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.serialization.reducers import reduce, reduce_cell


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
        Classes of ``__main__`` in the value that are named in the pickle but not described, by
        what they are called there.
    left_out
        Whether something is missing that the objects in it can compute again.
    cells
        The notebook's cells that functions in the value come from, for tracebacks.
    """

    stream: bytes
    buffers: tuple[memoryview, ...] = ()
    needs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    classes: Mapping[str, type] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    left_out: bool = False
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
        if len(memo) > object_tokens.MOST:  # bulk data; only the value itself counts
            memo = {id(self._value): memo[id(self._value)]} if id(self._value) in memo else {}
        return {key: entry for key, entry in memo.items() if object_tokens.is_mutable(entry[1])}


class _MainNamespace:
    """Stands for the receiver's ``__main__`` in a pickle."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return main_namespace, ()


def main_namespace() -> dict[str, Any]:
    """Return the globals of ``__main__``: the notebook's names, or a rank's."""
    return vars(sys.modules["__main__"])


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one value.

    Parameters
    ----------
    value
        What will be dumped.
    describe
        The classes of ``__main__`` that are described in the pickle, by what they are called there;
        others are only named. ``None`` is for all.
    bare
        Whether objects leave out what they have computed and could compute again.
    back
        Whether it is on its way to the notebook, whose classes stay as they are.
    """

    def __init__(
        self,
        value: Any,
        describe: Collection[str] | None = None,
        bare: bool = False,
        back: bool = False,
    ) -> None:
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
        self.left_out = False
        self._value = value
        self._describe = describe
        self._bare = bare
        self._back = back
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
            cell_sources.find(self.files, self._main),
            self.left_out,
            self,
            self._value,
        )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if isinstance(obj, types.FunctionType):
            self._note_module(obj.__module__)
        elif isinstance(obj, types.ModuleType):
            self._note_module(obj.__name__)
        elif isinstance(obj, types.CellType):
            return reduce_cell(obj)
        else:
            reduced = reduce(obj)
            if reduced is NotImplemented and self._bare and type(obj).__module__ == "__main__":
                reduced = _without_cached(obj)
                self.left_out = self.left_out or reduced is not NotImplemented
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    def _reduce_class(self, kind: type) -> Any:
        self._note_module(kind.__module__)
        if kind.__module__ == "__main__":
            identity = class_identity(kind)
            if self._describe is not None and identity not in self._describe:
                self.classes[identity] = kind
                return _class_named, (identity, kind.__qualname__)
        return _settled(kind, super().reducer_override(kind), keep=self._back)

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


class LinkingPickler(Pickler):
    """Names the objects that the receiver has by their tokens, given by identity."""

    def __init__(self, value: Any, tokens: Mapping[int, int]) -> None:
        super().__init__(value, describe=())
        self._tokens = tokens

    def persistent_id(self, obj: Any) -> int | None:
        return self._tokens.get(id(obj))


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


_imported: weakref.WeakKeyDictionary[types.CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def _imported_in(code: types.CodeType) -> frozenset[str]:
    """Return the modules that import statements in a function name."""
    names = _imported.get(code)
    if names is None:
        found = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
        inner = [_imported_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        names = _imported[code] = frozenset(found.union(*inner))
    return names


# Classes


def class_identity(kind: type) -> str:
    """Return what a class of ``__main__`` is called in pickles.

    A class that can be reached by its name is called after its content, wherever in a cell it
    stands. So the same class that each rank defines for itself is one class in the notebook, and
    one that is defined anew without a change, when its cell is run again, goes on being the class
    of what was made before.
    """
    by_class = _internals._DYNAMIC_CLASS_TRACKER_BY_CLASS
    with _naming:
        identity: str | None = by_class.get(kind)
        if identity is None and _in_main(kind.__qualname__) is kind:
            by_class[kind] = ""  # its own content can mention it
            try:
                content = _IdentityPickler(kind, describe=("",)).run()
            finally:
                del by_class[kind]
            identity = blake3.blake3(kind.__qualname__.encode() + content.stream).hexdigest()[:32]
            by_class[kind] = identity
            _internals._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = kind
    return identity or str(_internals._get_or_create_tracker_id(kind))


_naming = threading.RLock()
"""Held while a class has no identity yet: another thread may pickle an object of it."""


class _IdentityPickler(Pickler):
    """Leaves out where code comes from."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            bare = obj.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
            return _internals._code_reduce(bare)
        reduced = super().reducer_override(obj)
        if obj is self._value:
            reduced[2][0].pop("__firstlineno__", None)
        return reduced


def _in_main(name: str) -> Any:
    found: Any = main_namespace()
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found


def _class_named(identity: str, name: str) -> type:
    """Return the class of an identity: one that came here, or one that was defined here."""
    known = _internals._DYNAMIC_CLASS_TRACKER_BY_ID
    if identity not in known and isinstance(kind := _in_main(name), type):
        class_identity(kind)
    found: type = known[identity]
    return found


def _make_class(make: Callable[..., type], arguments: tuple[Any, ...], name: str) -> type:
    """Make a class that was described, or take the one that was defined here alike."""
    *_, identity, _ = arguments
    try:
        return _class_named(identity, name)
    except KeyError:
        kind = make(*arguments)
        _unfinished.add(kind)
        return kind


_unfinished: weakref.WeakSet[type] = weakref.WeakSet()


def _fill_class(kind: type, state: Any) -> None:
    _unfinished.discard(kind)
    _internals._class_setstate(kind, state)


def _fill_new_class(kind: type, state: Any) -> None:
    if kind in _unfinished:
        _fill_class(kind, state)


def _settled(kind: type, reduced: Any, *, keep: bool) -> Any:
    """Correct how cloudpickle takes a class apart: slots that it forgets, caches that it keeps."""
    if not isinstance(reduced, tuple) or len(reduced) < 6:
        return reduced
    make, arguments, state, *_ = reduced
    attributes = state[0]
    match arguments:
        case (_, _, _, dict() as creation, _, _) if attributes.get("__slots__"):
            creation["__slots__"] = kind.__dict__["__slots__"]
    attributes.pop("__slotnames__", None)
    if not attributes.get("__annotations__", True):
        del attributes["__annotations__"]
    fill = _fill_new_class if keep else _fill_class
    return _make_class, (make, arguments, kind.__qualname__), state, None, None, fill
