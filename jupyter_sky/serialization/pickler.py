"""The pickler for values of a notebook's namespace, derived from cloudpickle's.

`pickling` says how it differs.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import io
import pkgutil
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import blake3
import cloudpickle
from cloudpickle import cloudpickle as _internals

from jupyter_sky.analysis.query_names import named_in_queries
from jupyter_sky.serialization import cell_sources, garbage
from jupyter_sky.serialization.models import sharded
from jupyter_sky.serialization.models.wrapped import reduce_compiled
from jupyter_sky.serialization.module_reference import imported_in, is_replaced_enum, module_of
from jupyter_sky.serialization.object_tokens.kinds import is_plain
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.reducers import lazy_annotations
from jupyter_sky.serialization.reducers.by_type import reduce
from jupyter_sky.serialization.reducers.cached_properties import without_cached_properties
from jupyter_sky.serialization.reducers.functions import reduce_function
from jupyter_sky.serialization.reducers.jax_objects import with_tree

FillClass = Callable[[type, Any], object]

_LOAD_IN_CLASS = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""The instructions by which the body of a class looks up a name."""


class _MainNamespace:
    """Is pickled in place of the globals of ``__main__``, and loaded as the receiver's."""

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
        The value to pickle.
    classes_by_value
        Identities of the classes of ``__main__`` to pickle by value; others are pickled by
        reference. ``None`` for all.
    without_caches
        Whether to leave out cached values that objects can compute again.
    to_notebook
        Whether the value is sent to the notebook, whose classes stay as they are.
    whole
        The whole tensors to put in the place of sharded ones.
    refilled
        How the notebook changes classes that it has, if it does not leave them as they are.
    """

    def __init__(
        self,
        value: Any,
        classes_by_value: Collection[str] | None = None,
        without_caches: bool = False,
        to_notebook: bool = False,
        whole: sharded.Whole = sharded.NOTHING,
        refilled: Mapping[type, FillClass] = MappingProxyType({}),
    ) -> None:
        self.file = io.BytesIO()
        # The callback does not refer to the pickler. The cycle would keep large arrays until the
        # next garbage collection, which counts objects and not bytes.
        self.buffers = buffers = list[memoryview]()
        super().__init__(
            self.file, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw())
        )
        self.needs: set[str] = set()
        self.modules: set[str] = set()
        self.classes: dict[str, type] = {}
        self.files: set[str] = set()
        self.omitted: list[Mapping[str, object]] = []
        self._value = value
        self._classes_by_value = classes_by_value
        self._without_caches = without_caches
        self._fill_class = fill_new_class if to_notebook else fill_class
        self._refilled = refilled
        self._reduce_sharded = sharded.reducer(whole)
        self._main = main_namespace()
        # Cloudpickle keeps here what it pickles in place of a function's globals.
        self.globals_ref[id(self._main)] = _MainNamespace()

    @garbage.not_searched_for()
    def run(self) -> Pickled:
        """Pickle the value."""
        self.dump(self._value)
        return Pickled(
            self.file.getvalue(),
            tuple(self.buffers),
            frozenset(self.needs),
            frozenset(self.modules),
            self.classes,
            cell_sources.find(self.files, self._main),
            self.omitted,
            self,
            self._value,
        )

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if isinstance(obj, types.FunctionType):
            self._add_module(obj.__module__)
            if (reduced := reduce_compiled(obj)) is not NotImplemented:
                return reduced
        else:
            if isinstance(obj, types.ModuleType):
                self._add_module(obj.__name__)
            self._add_module(module_of(obj))
            reduced = reduce(obj)
            if reduced is not NotImplemented and reduced[0] is pkgutil.resolve_name:
                self._add_module(reduced[1][0].partition(":")[0])
            if reduced is NotImplemented and self._reduce_sharded is not None:
                reduced = self._reduce_sharded(obj)
            if reduced is NotImplemented and self._without_caches:
                reduced = without_cached_properties(obj, self.omitted)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)

    def _reduce_class(self, kind: type) -> Any:
        self._add_module(kind.__module__)
        if kind.__module__ == "__main__":
            identity = class_identity(kind)
            if self._classes_by_value is not None and identity not in self._classes_by_value:
                self.classes[identity] = kind
                return _class_named, (identity, kind.__qualname__)
        if is_replaced_enum(kind):
            return pkgutil.resolve_name, (f"{kind.__module__}:{kind.__qualname__}",)
        fill = self._refilled.get(kind, self._fill_class)
        reduced = _corrected(kind, super().reducer_override(kind), fill)
        return with_tree(kind, reduced)

    def _add_module(self, name: Any) -> None:
        if isinstance(name, str):
            self.modules.add(name)

    def _function_getnewargs(self, function: types.FunctionType) -> Any:
        # Cloudpickle would give each function closure cells of its own.
        *arguments, _ = super()._function_getnewargs(function)
        return *arguments, function.__closure__

    def _dynamic_function_reduce(self, function: types.FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(lazy_annotations.evaluated(function))
        attributes = reduced[2][1]
        attributes["__closure__"] = None
        self.modules.update(imported_in(function.__code__))
        if function.__globals__ is self._main:
            # Also names that the notebook does not have: ranks may have defined them.
            self.needs.update(_internals._extract_code_globals(function.__code__))
            self.needs.update(named_in_queries(function.__code__))
            self.needs.update(_named_in_class_bodies(function.__code__))
            self.files.add(function.__code__.co_filename)
            attributes["__globals__"] = {}
            return reduce_function(function, reduced)
        return reduced


def _named_in_class_bodies(code: types.CodeType) -> set[str]:
    """Return the global names that the bodies of classes in a function read, unless they bind them.

    Unlike functions, they look a name up in two places, by another instruction.
    """
    found: set[str] = set()
    for body in code.co_consts:
        if isinstance(body, types.CodeType):
            if not body.co_flags & inspect.CO_OPTIMIZED:
                bound = {"__name__", "__annotations__"}  # which each has of its own
                for each in dis.get_instructions(body):
                    if each.opname == "STORE_NAME":
                        bound.add(each.argval)
                    elif each.opname in _LOAD_IN_CLASS and each.argval not in bound:
                        found.add(each.argval)
            found |= _named_in_class_bodies(body)
    return found


class LinkingPickler(Pickler):
    """Pickles objects that the receiver has as tokens, which are given by identity."""

    def __init__(
        self,
        value: Any,
        tokens: Mapping[int, int],
        classes_by_value: Collection[str],
        without_caches: bool = False,
    ) -> None:
        super().__init__(value, classes_by_value, without_caches)
        self._tokens = tokens
        self.plain: dict[int, Any] = {}  # what it refers to, by token, if it holds nothing else

    def persistent_id(self, obj: Any) -> int | None:
        token = self._tokens.get(id(obj))
        if token is not None and token not in self.plain and is_plain(obj):
            self.plain[token] = obj
        return token


# Classes


def class_identity(kind: type) -> str:
    """Return the identity of a class of ``__main__``, by which pickles refer to it.

    For a class that can be reached by its name, it is a digest of its content without line numbers.
    So a class that each rank defines for itself is one class in the notebook, and a class that is
    defined again without changes, when its cell is rerun, is still the class of earlier objects.
    """
    by_class = _internals._DYNAMIC_CLASS_TRACKER_BY_CLASS
    with _identifying:
        identity: str | None = by_class.get(kind)
        if identity is None and in_main(kind.__qualname__) is kind:
            by_class[kind] = ""  # its own content may refer to it
            try:
                content = _IdentityPickler(kind, classes_by_value=("",)).run()
            finally:
                del by_class[kind]
            identity = blake3.blake3(kind.__qualname__.encode() + content.stream).hexdigest()[:32]
            by_class[kind] = identity
            _internals._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = kind
    return identity or str(_internals._get_or_create_tracker_id(kind))


_identifying = threading.RLock()
"""Held while a class has no identity yet, or its base is not as usual, for other threads."""


class _IdentityPickler(Pickler):
    """Omits the file names and line numbers of code, and the order of sets.

    That order follows hashes, which differ between processes; most sets are constants of code, as
    in ``x in {"a", "b"}``.
    """

    def persistent_id(self, obj: Any) -> tuple[str, list[bytes]] | None:
        if type(obj) not in (set, frozenset):
            return None
        parts = [_IdentityPickler(part, classes_by_value=()).run().stream for part in obj]
        return type(obj).__name__, sorted(parts)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            bare = obj.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
            return _internals._code_reduce(bare)
        if type(obj) is object:  # each rank that defines the class has its own
            return object, ()
        reduced = super().reducer_override(obj)
        if obj is self._value and self._classes_by_value:
            reduced[2][0].pop("__firstlineno__", None)
        return reduced


def in_main(name: str) -> Any:
    """Return what a name of a class stands for in the notebook; ``None`` for nothing."""
    found: Any = main_namespace()
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found


def _class_named(identity: str, name: str) -> type:
    """Return the class of an identity, whether it was received or defined here."""
    known = _internals._DYNAMIC_CLASS_TRACKER_BY_ID
    kind = in_main(name)
    if identity not in known and isinstance(kind, type) and kind.__module__ == "__main__":
        class_identity(kind)
    found: type = known[identity]
    return found


def class_of(identity: str) -> type | None:
    """Return the class of an identity, if it was received or defined here."""
    found: type | None = _internals._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
    return found


def _make_class(make: Callable[..., type], arguments: tuple[Any, ...], name: str) -> type:
    """Make a class that was pickled by value, unless the same class was defined here."""
    *_, identity, _ = arguments
    try:
        return _class_named(identity, name)
    except KeyError:
        pass
    try:
        kind = make(*arguments)
    except Exception:
        # Classes and enumerations are made from different arguments; the first tuple has the bases.
        bases = next(each for each in arguments if isinstance(each, tuple))
        mro = [each for base in bases for each in base.__mro__]
        owner = next((each for each in mro if "__init_subclass__" in vars(each)), object)
        if owner is object:
            raise
        with _without_init_subclass(owner):
            kind = make(*arguments)
    _unfinished.add(kind)
    return kind


@contextlib.contextmanager
def _without_init_subclass(owner: type) -> Iterator[None]:
    """Make classes without calling the ``__init_subclass__`` of their bases.

    It ran where the class was defined, and its effects on the class come with it. Here it might
    need arguments that are lost, or attributes that the class gets only later.
    """
    usual, thread = vars(owner)["__init_subclass__"], threading.get_ident()

    def init_subclass(cls: type, /, **arguments: Any) -> None:
        if threading.get_ident() != thread:
            usual.__get__(None, cls)(**arguments)

    with _identifying:
        type.__setattr__(owner, "__init_subclass__", classmethod(init_subclass))
        try:
            yield
        finally:
            type.__setattr__(owner, "__init_subclass__", usual)


_unfinished: weakref.WeakSet[type] = weakref.WeakSet()


held_back: ContextVar[dict[type, Any]] = ContextVar("held_back")
"""Where the attributes of its classes are put with which they would be filled."""


def fill_class(kind: type, state: Any) -> None:
    """Fill a class, whether or not it was there before, unless that is held back."""
    if kind in (states := held_back.get({})):
        states[kind] = state
        return
    _unfinished.discard(kind)
    _internals._class_setstate(kind, state)


def fill_new_class(kind: type, state: Any) -> bool:
    """Fill a class that has just been made; return ``False`` for one that was there before."""
    is_new = kind in _unfinished
    if is_new:
        fill_class(kind, state)
    return is_new


def _corrected(kind: type, reduced: Any, fill: FillClass) -> Any:
    """Correct how cloudpickle reduces a class: it forgets slots and keeps caches.

    Parameters
    ----------
    kind
        The class.
    reduced
        The result of cloudpickle.
    fill
        What the receiver calls with the class, and with its attributes, as cloudpickle has them.
    """
    if not isinstance(reduced, tuple) or len(reduced) < 6:
        return reduced
    make, arguments, state, *_ = reduced
    attributes = state[0]
    match arguments:
        case (_, _, _, dict() as creation, _, _) if attributes.get("__slots__"):
            creation["__slots__"] = kind.__dict__["__slots__"]
    attributes.pop("__slotnames__", None)
    attributes.pop("__annotations_cache__", None)
    if annotations := lazy_annotations.of_class(kind):
        attributes["__annotations__"] = annotations
    if not attributes.get("__annotations__", True):
        del attributes["__annotations__"]
    return _make_class, (make, arguments, kind.__qualname__), state, None, None, fill
