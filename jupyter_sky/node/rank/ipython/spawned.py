"""Processes that a rank spawns: they find the rank's functions and classes under ``__main__``.

A process that `multiprocessing` does not fork begins empty, and pickles refer to what is in
``__main__`` by name. Under plain Python it runs the program's file again; here the code is that of
cells, or of a script that need not be on the node, so that a rank sends along what it has.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from multiprocessing import spawn
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from jupyter_sky.serialization import cell_sources, pickling
from jupyter_sky.serialization.pickling import Pickled

_LARGEST = 1 << 30
"""Bytes of a value that is sent because a function uses it."""

_BEGIN = f"""
import sys
sys.path[:] = path
from {__name__} import begin
begin(parts, left_out)
"""


def install() -> None:
    """Let the processes that this one spawns find what is in ``__main__`` here."""
    if not isinstance(spawn.get_preparation_data, _Preparation):
        spawn.get_preparation_data = _Preparation(spawn.get_preparation_data)


class _Preparation:
    """Tells a new process how to begin.

    Parameters
    ----------
    usual
        What Python tells it.
    """

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def __call__(self, name: str) -> dict[str, Any]:
        data: dict[str, Any] = self._usual(name)
        for key in ("init_main_from_path", "init_main_from_name"):
            data.pop(key, None)
        data["jupyter_sky"] = _Beginning(*_pack())
        return data


_Part = tuple[tuple[str, ...], bytes, list[bytes], cell_sources.Cells]
"""Names, the pickle of their values, its buffers, and the cells that the code is of."""


class _Beginning:
    """What is run in the new process when it is told how to begin."""

    def __init__(self, parts: list[_Part], left_out: list[str]) -> None:
        self._parts, self._left_out = parts, left_out

    def __reduce__(self) -> Any:
        path = list(sys.path)
        return exec, (_BEGIN, {"path": path, "parts": self._parts, "left_out": self._left_out})


# In the rank


def _pack() -> tuple[list[_Part], list[str]]:
    """Return the code in ``__main__`` and the values that it uses, and names that are left out."""
    names = dict(pickling.main_namespace())
    code = {name: value for name, value in names.items() if _is_code(value)}
    if not (pickled := _dumped(code)):
        code = {name: value for name, value in code.items() if _dumped({name: value})}
        pickled = _dumped(code)
    if pickled is None:
        return [], []
    packed, left_out = [_part(code, pickled)], []
    wanted, seen = set(pickled.needs), set(code)
    while new := sorted(wanted - seen):
        seen.update(new)
        for name in new:
            if name not in names or name.startswith("__"):
                continue
            pickled = _dumped({name: names[name]})
            if pickled is not None and _is_for_others(pickled):
                packed.append(_part([name], pickled))
                wanted.update(pickled.needs)
            else:
                left_out.append(name)
    return packed, left_out


def _is_code(value: Any) -> bool:
    """Return whether a value is pickled by its name, or compared by its identity alone."""
    if type(value) is object or isinstance(value, ModuleType):
        return True
    with contextlib.suppress(Exception):
        if isinstance(value, FunctionType | type) or isinstance(value.__qualname__, str):
            return bool(value.__module__ == "__main__")
    return False


def _dumped(values: dict[str, Any]) -> Pickled | None:
    with contextlib.suppress(Exception):
        return pickling.dump(values)
    return None


def _is_for_others(pickled: Pickled) -> bool:
    """Return whether further processes can do with a value: each would take memory of the GPU."""
    if len(pickled.stream) + sum(each.nbytes for each in pickled.buffers) > _LARGEST:
        return False
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", ())
    return not any(isinstance(each, kind) and each.is_cuda for _, each in pickled.memo.values())


def _part(names: Iterable[str], pickled: Pickled) -> _Part:
    return tuple(names), pickled.stream, list(map(bytes, pickled.buffers)), pickled.cells


# In the new process


def begin(parts: list[_Part], left_out: list[str]) -> None:
    """Take what the rank has sent, as soon as all else is prepared.

    It is called while this process reads how to begin, and nothing of that is done yet.
    """
    usual = spawn.prepare

    def prepare(data: Mapping[str, Any]) -> None:
        spawn.prepare = usual
        usual(dict(data))
        _load(parts, left_out)
        install()

    spawn.prepare = prepare


def _load(parts: list[_Part], left_out: list[str]) -> None:
    main = ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    main.__getattr__ = _absent  # type: ignore[method-assign]
    vars(main).update((name, _unusable(name)()) for name in left_out)
    for names, stream, buffers, cells in parts:
        cell_sources.register(cells)
        try:
            vars(main).update(pickling.load(stream, map(bytearray, buffers)))
        except Exception as error:
            vars(main).update((name, _unusable(name, str(error))()) for name in names)


def _absent(name: str) -> Any:
    """Return what takes the place of a name that is not here, for a pickle that refers to it.

    A worker of a pool would end for it, and others would begin for ever in its place.
    """
    reader = sys._getframe(1).f_globals.get("__name__", "")
    if name.startswith("__") or not reader.startswith(("multiprocessing.", "concurrent.")):
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
    return _Absent(name, (_Unusable,), {"said": _sentence(name)})


def _unusable(name: str, why: str = "") -> type[_Unusable]:
    return type(name, (_Unusable,), {"said": _sentence(name, why)})


def _sentence(name: str, why: str = "") -> str:
    reason = f"cannot be read there ({why})" if why else "came after them or cannot be sent there"
    return (
        f"{name} is not in the processes that this rank has started, as it {reason}: define it "
        "before them, or import it from a module."
    )


class _Unusable:
    """An object that is not here, or whose class is not: its use raises."""

    said = ""

    def __setstate__(self, state: object) -> None:
        pass

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(self.said)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(self.said)

    __call__ = __enter__ = __exit__ = __iter__ = __len__ = __getitem__ = __setitem__ = _refuse


class _Absent(type):
    """A function or class that a pickle refers to, and that is not here: calls of it raise."""

    said: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(cls.said)
