"""Gives functions and classes that were edited their new code, where they are held on to.

What is wanted: values of the user's, other modules and libraries hold functions, classes and
objects from before an edit. They get the new code, as with ``%autoreload``.

What does not work: the functions of IPython's ``%autoreload``. They fail half-way where a method
calls `super` for the first time, a function gets a decorator, a class holds tensors, or objects of
a class have slots; and where ``Model = Small`` became ``Model = Large``, all objects of ``Small``
became ``Large``.

The solution: a function or class is renewed by the one of the same qualified name, in what the
classes themselves hold: nothing of the user's is called, or compared. Python gives no object other
slots, and no function other variables, of its module or of functions around it: such ones stay as
they were, and a class that had them has the new ones.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any


class Renewal:
    """Gives what is left of a module's former functions and classes the code of the new ones.

    Parameters
    ----------
    module
        The name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        # With the objects, so that no other one gets their id.
        self._renewed: dict[int, tuple[Any, bool]] = {}
        self._classes: list[tuple[type, type]] = []

    def renew_all(self, former: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Have what there was do what there is now.

        Parameters
        ----------
        former
            What the module had, by name.
        now
            What it has.
        """
        for name, old in former.items():
            self._renew(old, now.get(name))
        _move_instances(self._classes)

    def _renew(self, old: Any, new: Any) -> bool:
        """Have something do what another does; return whether it does so."""
        if old is new:
            return True
        for kind, parts in _PARTS.items():
            if type(old) is type(new) is kind:
                done = [self._renew(getattr(old, part), getattr(new, part)) for part in parts]
                return all(done)
        if not self._replaces(old, new):
            return False
        if id(old) not in self._renewed:
            self._renewed[id(old)] = old, True  # it may be in what it holds itself
            renew = self._renew_class if issubclass(type(old), type) else self._renew_function
            self._renewed[id(old)] = old, renew(old, new)
            _, earlier = _replaced.pop(id(old), (None, []))
            for find in earlier:
                self._renew(find(), new)
            _note_replaced(old, new)
        return self._renewed[id(old)][1]

    def _replaces(self, old: Any, new: Any) -> bool:
        kinds = [
            kind
            for kind in (type, FunctionType)  # what it says of its class itself may fail
            if issubclass(type(old), kind) and issubclass(type(new), kind)
        ]
        return bool(kinds) and (
            old.__module__ == self._module  # a class may be in another one now
            and old.__qualname__ == new.__qualname__
        )

    def _renew_function(self, old: FunctionType, new: FunctionType) -> bool:
        is_alike = old.__code__.co_freevars == new.__code__.co_freevars
        if not is_alike or old.__globals__ is not new.__globals__:
            return False
        for name in _OF_FUNCTIONS:
            setattr(old, name, getattr(new, name))
        # What a decorator returns has the function itself there.
        cells = zip(old.__closure__ or (), new.__closure__ or (), strict=True)
        for name, (had, has) in zip(old.__code__.co_freevars, cells, strict=True):
            with contextlib.suppress(ValueError):  # if it is empty
                if self._renew(had.cell_contents, has.cell_contents) and name == _CLASS:
                    # Methods that are held, as with their objects, have objects of the new class.
                    had.cell_contents = has.cell_contents
        return True

    def _renew_class(self, old: type, new: type) -> bool:
        had, has = dict(vars(old)), dict(vars(new))
        for name in had.keys() | has.keys():
            former, now = had.get(name), has.get(name)
            if name == "__slots__" or any(issubclass(type(each), _SLOTS) for each in (former, now)):
                continue  # objects of the class have those that it was made with
            with contextlib.suppress(AttributeError, TypeError):  # of what Python keeps to itself
                if name not in has:
                    type.__delattr__(old, name)
                    continue
                made = _method_of(old, new, now)
                if name not in had or not self._renew(former, now) or made is not now:
                    type.__setattr__(old, name, made)
        self._classes.append((old, new))
        _move_subclasses(old, new)
        return True


_replaced: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]]]] = {}
"""What functions and classes replace, by their identities: that is renewed by later edits, too."""


def _note_replaced(old: Any, new: Any) -> None:
    identity = id(new)
    if identity not in _replaced:
        _replaced[identity] = weakref.ref(new, lambda _: _replaced.pop(identity, None)), []
    _replaced[identity][1].append(weakref.ref(old))


_PARTS: dict[type, Sequence[str]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}
_ANNOTATIONS = "__annotate__" if sys.version_info >= (3, 14) else "__annotations__"
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__dict__", _ANNOTATIONS)
_SLOTS = (MemberDescriptorType, GetSetDescriptorType)
_CLASS = "__class__"  # the variable of methods that call `super`


def _method_of(old: type, new: type, value: Any, around: tuple[Any, ...] = ()) -> Any:
    """Return an attribute of a class as one of the class that it replaces.

    A method that calls `super` has its class as a variable of a function around it. Who holds the
    former class makes objects of that, which `super` refuses for any other class.

    Parameters
    ----------
    around
        The functions that have it as a variable, as those that decorators return.
    """
    around += (value,)
    if parts := _PARTS.get(type(value)):
        had = [getattr(value, part) for part in parts]
        made = [_method_of(old, new, each, around) for each in had]
        return value if _are_same(had, made) else type(value)(*made)
    if type(value) is not FunctionType or any(value is each for each in around[:-1]):
        return value
    variables = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
    cells = [_cell_of(old, new, *each, around) for each in variables.items()]
    if _are_same(variables.values(), cells):
        return value
    method = FunctionType(value.__code__, value.__globals__, closure=tuple(cells))
    for name in _OF_FUNCTIONS:
        setattr(method, name, getattr(value, name))
    return method


def _cell_of(old: type, new: type, name: str, cell: CellType, around: tuple[Any, ...]) -> CellType:
    with contextlib.suppress(ValueError):  # if it is empty
        has = cell.cell_contents
        is_class = name == _CLASS and has is new
        made = old if is_class else _method_of(old, new, has, around)
        return cell if made is has else CellType(made)
    return cell


def _are_same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _move_instances(classes: Sequence[tuple[type, type]]) -> None:
    """Give the instances of classes, which come first, those that replace these."""
    replacing = {id(old): new for old, new in classes}
    # Python looks through all objects for it, so that it is asked once.
    for each in gc.get_referrers(*(old for old, _ in classes)) if classes else ():
        kind = type(each)
        if id(kind) in replacing:
            set_attribute = type.__setattr__ if issubclass(kind, type) else object.__setattr__
            # As if the new class has another layout, or says itself what its objects' class is.
            with contextlib.suppress(AttributeError, TypeError):
                set_attribute(each, "__class__", replacing[id(kind)])


def _move_subclasses(old: type, new: type) -> None:
    """Rebase the subclasses of a class on the class that replaces it."""
    # A metaclass has a method of this name for its classes.
    children: list[type] = type.__subclasses__(old)
    for child in children:
        with contextlib.suppress(TypeError):  # if the new class has another layout
            child.__bases__ = tuple(new if base is old else base for base in child.__bases__)
