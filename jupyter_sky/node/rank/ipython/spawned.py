"""Lets processes that a rank spawns find the rank's functions and classes in ``__main__``.

A process that `multiprocessing` spawns begins empty, while pickles refer to objects of ``__main__``
by name. Plain Python runs the program's file again. Here the code is in cells, or in a script that
need not be on the node, so the rank sends along what it has.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import spawn, util
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from jupyter_sky.node.rank import child_interrupts
from jupyter_sky.serialization import cell_sources, pickling
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.transport.metrics import metric_log

_LARGEST = 1 << 30
"""Bytes of a value that is sent because a function uses it."""

_BEGIN = f"""
import sys
sys.path[:] = path
from {__name__} import begin
begin(values, left_out)
"""


def install() -> None:
    """Let processes that this one spawns find the content of its ``__main__``."""
    if not isinstance(spawn.get_preparation_data, _Preparation):
        spawn.get_preparation_data = _Preparation(spawn.get_preparation_data)
        util.spawnv_passfds = partial(_spawn, util.spawnv_passfds)


def _spawn(usual: Callable[..., int], *args: Any) -> int:
    """Start a process that is interrupted no sooner than `begin` has made that end it quietly."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return usual(*args)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Preparation:
    """The preparation data for a new process.

    Parameters
    ----------
    usual
        The preparation data of Python itself.
    """

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def __call__(self, name: str) -> dict[str, Any]:
        data: dict[str, Any] = self._usual(name)
        for key in ("init_main_from_path", "init_main_from_name"):
            data.pop(key, None)
        data["jupyter_sky"] = _Beginning(*_pack())
        return data


@dataclass(frozen=True)
class _Values:
    """Values of ``__main__``, pickled.

    Attributes
    ----------
    names
        Their names.
    stream, buffers
        The pickle.
    cells
        The cells that define functions in it.
    is_code
        Whether pickles refer to them by their names.
    """

    names: tuple[str, ...]
    stream: bytes
    buffers: list[bytes]
    cells: cell_sources.Cells
    is_code: bool

    def fields(self) -> tuple[Any, ...]:
        """Return it as plain data, since the new process cannot import this module yet."""
        return self.names, self.stream, self.buffers, self.cells, self.is_code


class _Beginning:
    """Runs in the new process while it reads its preparation data."""

    def __init__(self, values: list[_Values], left_out: dict[str, bool]) -> None:
        self._values, self._left_out = values, left_out

    def __reduce__(self) -> Any:
        values = [each.fields() for each in self._values]
        names = {"path": list(sys.path), "values": values, "left_out": self._left_out}
        return exec, (_BEGIN, names)


# In the rank


def _pack() -> tuple[list[_Values], dict[str, bool]]:
    """Return the code in ``__main__``, the values that it uses, and the names left out.

    The names left out are given with whether they are code.
    """
    names = dict(pickling.main_namespace())
    code = {name: value for name, value in names.items() if _is_code(value)}
    left_out: dict[str, bool] = {}
    if not (pickled := _dumped(code)):
        whole = {name: value for name, value in code.items() if _dumped({name: value})}
        left_out.update(dict.fromkeys(code.keys() - whole.keys(), True))
        code, pickled = whole, _dumped(whole)
    if pickled is None:
        return [], dict.fromkeys(code, True)
    packed = [_values(code, pickled, is_code=True)]
    wanted, seen = set(pickled.needs), {*code, *left_out}
    while new := sorted(wanted - seen):
        seen.update(new)
        for name in new:
            if name not in names or name.startswith("__"):
                continue
            pickled = None if _is_on_gpu(names[name]) else _dumped({name: names[name]})
            if pickled is not None and _is_for_others(pickled):
                packed.append(_values([name], pickled, is_code=False))
                wanted.update(pickled.needs)
            else:
                left_out[name] = False
    return packed, left_out


def _is_code(value: Any) -> bool:
    """Return whether a value is pickled by name, or compared by identity only."""
    if type(value) is object:
        return True
    with contextlib.suppress(Exception):  # a value may answer anything when it is asked
        if isinstance(value, FunctionType | type) or isinstance(value.__qualname__, str):
            return bool(value.__module__ == "__main__")
    return False


def _dumped(values: dict[str, Any]) -> Pickled | None:
    with contextlib.suppress(Exception):  # of any kind, from the user's classes
        return pickling.dump(values)
    return None


def _is_for_others(pickled: Pickled) -> bool:
    """Return whether a value is of use to further processes."""
    size = len(pickled.stream) + sum(each.nbytes for each in pickled.buffers)
    return size <= _LARGEST and not any(
        map(_is_on_gpu, (each for _, each in pickled.memo.values()))
    )


def _is_on_gpu(value: Any) -> bool:
    """Return whether a value is on a GPU, where every further process would take memory for it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    with contextlib.suppress(Exception):  # a value may answer anything when it is asked
        if isinstance(value, torch.Tensor):
            return bool(value.is_cuda)
        if isinstance(value, torch.nn.Module):
            return any(each.is_cuda for each in value.parameters())
    return False


def _values(names: Iterable[str], pickled: Pickled, is_code: bool) -> _Values:
    buffers = list(map(bytes, pickled.buffers))
    return _Values(tuple(names), pickled.stream, buffers, pickled.cells, is_code)


# In the new process


def begin(values: list[tuple[Any, ...]], left_out: Mapping[str, bool]) -> None:
    """Install what the rank has sent, once everything else is prepared.

    It is called while this process reads its preparation data, before any of it is applied.
    """
    child_interrupts.end_quietly(util)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    usual = spawn.prepare

    def prepare(data: Mapping[str, Any]) -> None:
        spawn.prepare = usual
        usual(dict(data))
        _load([_Values(*each) for each in values], left_out)
        metric_log.take_none()
        install()

    spawn.prepare = prepare


def _load(values: Iterable[_Values], left_out: Mapping[str, bool]) -> None:
    main = ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    main.__getattr__ = _missing  # type: ignore[method-assign]
    names = vars(main)
    names.update((name, _stand_in(name, is_code)) for name, is_code in left_out.items())
    for each in values:
        cell_sources.register(each.cells)
        try:
            names.update(pickling.load(each.stream, map(bytearray, each.buffers)))
        except Exception as error:
            names.update((name, _stand_in(name, each.is_code, str(error))) for name in each.names)


def _missing(name: str) -> Any:
    """Return a placeholder for a missing name that a pickle refers to.

    Otherwise a worker of a pool would fail, and be replaced by others for ever.
    """
    reader = sys._getframe(1).f_globals.get("__name__", "")
    if name.startswith("__") or not reader.startswith(_READERS):
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
    return _stand_in(name, is_code=True)


_READERS = ("multiprocessing.", "concurrent.", "torch.multiprocessing.")


def _stand_in(name: str, is_code: bool, why: str = "") -> Any:
    kind: Any = _Absent(name, (_Unusable,), {"said": _sentence(name, why)})
    return kind if is_code else object.__new__(kind)


def _sentence(name: str, why: str = "") -> str:
    reason = f"cannot be read there ({why})" if why else "came after them or cannot be sent there"
    return (
        f"{name} is not in the processes that this rank has started, as it {reason}: define it "
        "before them, or import it from a module."
    )


class _Unusable:
    """An object that is missing, or whose class is: using it raises an error."""

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
    """A missing function or class that a pickle refers to: calling it raises an error."""

    said: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(cls.said)
