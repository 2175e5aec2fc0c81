"""``sky.log``: metrics of a rank, which the notebook draws as curves.

A rank sets a sink that takes them; processes of a script find the way to their rank's sink. In any
other process they are dropped, so that the same code runs everywhere.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import shortened
from jupyter_sky.transport.metrics.script_metrics import PATH, ScriptMetrics

NAMES = 256
"""Names that a rank can log in a run."""

LONGEST = 100
"""Characters of a name."""

Sink = Callable[[Mapping[str, float], float | None], bool]
"""Takes figures and their step; returns whether it takes those of this process at all."""

_sink: Sink | None = None
_flush: Callable[[], None] | None = None
_has_told: mmap.mmap | None = None  # shared with the processes that this one forks


def set_sink(sink: Sink | None, flush: Callable[[], None] | None = None) -> None:
    """Have logged figures given to a function, with the step that they belong to.

    Parameters
    ----------
    sink
        The function.
    flush
        Sends what was given to it so far.
    """
    global _sink, _flush, _has_told
    _sink, _flush, _has_told = sink, flush, mmap.mmap(-1, 1)


def flush() -> None:
    """Send what was logged so far, which a rank otherwise does a few times a second."""
    if _flush:
        _flush()


def take_none() -> None:
    """Have this process take no figures, as one that a rank has started beside itself."""
    set_sink(lambda values, step: False)


def begin_run() -> None:
    """Have it told once again if figures are left out."""
    if _has_told:
        _has_told[0] = False


def _taker() -> Sink | None:
    """Return what takes figures; in a process of a script, the way to its rank."""
    if _sink is None and (path := os.environ.get(PATH)):
        with contextlib.suppress(OSError):  # the script is over
            set_sink(ScriptMetrics(path).log)
    return _sink


def log(values: Mapping[str, Any] | None = None, /, *, step: Any = None, **named: Any) -> None:
    """Log metrics: the notebook draws them as live curves and keeps them with the run.

    Each name is a curve. Any rank may log; the head's curves are shown first. Outside a cluster
    nothing happens.

    Parameters
    ----------
    values
        Metrics by name, for names that cannot be Python keywords, as in ``sky.log({"train/loss":
        loss}, step=7)``.
    step
        Their position on the curve; by default each name counts its own steps, from 0.
    **named
        Metrics by name: numbers, or tensors and arrays with a single element.

    Raises
    ------
    UsageError
        If a value is not a number.

    Examples
    --------
    >>> sky.log(step=step, loss=loss, lr=scheduler.get_last_lr()[0])
    """
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(
            f"sky.log takes figures by their names, and {type(values).__name__} has none: write "
            "sky.log(loss=loss), or sky.log({'train/loss': loss})."
        )
    given = {**(values or {}), **named}
    if not given:
        raise UsageError("sky.log needs a figure with a name, as in sky.log(step=7, loss=0.3).")
    at = None if step is None else _number("step", step)
    if at is not None and at - at != 0:
        raise UsageError(f"sky.log: the step is {at}: give a finite number.")
    found = {_name(name): _number(name, value) for name, value in given.items()}
    if (sink := _taker()) and not sink(found, at):
        _tell_once()


def _tell_once() -> None:
    if _has_told and not _has_told[0]:
        _has_told[0] = True
        print(
            "sky.log: what processes log that a rank has started, like the workers of a "
            "DataLoader, is left out: return it, and log it in the rank itself.",
            file=sys.stderr,
            flush=True,
        )


def log_some(values: Mapping[Any, Any], step: Any) -> None:
    """Log those of a library's metrics that are numbers; never raises."""
    sink = _taker()
    if sink is None:
        return
    found = {}
    for name, value in values.items():
        try:
            found[_name(name)] = _number(str(name), value)
        except Exception:  # text, images, histograms: nothing to draw as a curve
            continue
    if found:
        try:
            at = None if step is None else _number("step", step)
        except UsageError:
            at = None
        sink(found, at)


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"sky.log: {name!r} is no name for a curve: give a text.")
    return shortened(name, LONGEST)


def _number(name: str, value: Any) -> float:
    kind = type(value)
    if kind is float or kind is int:
        return float(value) if kind is float else _whole(name, value)
    try:
        # A tensor or an array; `item` raises an error if it has several elements.
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, str | bytes | complex):
            raise TypeError(value)
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = getattr(value, "shape", None)
        what = f"a {kind.__name__}" + (f" of shape {list(shape)}" if shape else "")
        raise UsageError(
            f"sky.log: {name} is {what}, which is no number: give a number, or a tensor with a "
            "single element, like loss.mean()."
        ) from None


def _whole(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"sky.log: {name} is too large for a curve.") from None
