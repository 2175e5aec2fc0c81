"""What pools say, in words of the place where it is read: magics only where there are any."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.errors import RESTARTS_TOO, RUN_AGAIN, SkyError, as_in_terminal

_SAME = (
    *("nodes", "cpus", "memory", "procs-per-node", "idle-timeout", "replace", "patience"),
    *("hosts", "region", "zone", "instance-type", "spot", "max-price", "max-cost", "selection"),
    *("partition", "account", "qos", "time", "constraint", "gres", "exclusive", "login"),
    *("modules", "conda", "container", "pip", "wheels"),
)
_ARGUMENTS = {each: each.replace("-", "_") for each in _SAME} | {
    "gpu": "accelerator",
    "cluster": "name",
    "plugin": "plugins",
    "volume": "volumes",
}
"""Arguments of pools, their providers and images, by the option of a cell that stands for each."""

_OPTION = rf"(?<![\w-])--({'|'.join(sorted(_ARGUMENTS, key=len, reverse=True))})\b(?!-)"
_TYPED = re.compile(rf"`{_OPTION}(?: ([^`]+))?`")
_NAMED = re.compile(_OPTION)
_CODE = re.compile("(`[^`]*`)")
_QUOTE = "'"
_NUMBER = re.compile(r"\d+(\.\d+)?")


def worded(text: str) -> str:
    """Return a sentence about a pool with what can be done in this notebook or script.

    Rooms below write their sentences for cells of a notebook.
    """
    for cell in (f"{RUN_AGAIN}{RESTARTS_TOO}", RUN_AGAIN):
        text = text.replace(cell, "Start another pool to have a new one")
    text = _with_arguments(text)
    return text if has_magics() else as_in_terminal(text)


def _with_arguments(text: str) -> str:
    """Return a sentence with arguments in place of the options of cells, except in commands."""
    parts = _CODE.split(_TYPED.sub(_argument, text))
    parts[::2] = [_NAMED.sub(lambda found: _ARGUMENTS[found[1]], each) for each in parts[::2]]
    return "".join(parts)


def _argument(found: re.Match[str]) -> str:
    name, value = _ARGUMENTS[found[1]], found[2]
    if value is None:
        return f"`{name}`"
    if not _NUMBER.fullmatch(value):
        value = f'"{value.strip(_QUOTE)}"'
    return f"`{name}={value}`"


def reword(error: BaseException | None) -> None:
    """Have an error of ours say what can be done here."""
    if isinstance(error, SkyError | Interrupted):
        # Types of the user's own may have other arguments, also on ranks.
        match error.args:
            case str() as sentence, *others:
                error.args = (worded(sentence), *others)


@contextlib.contextmanager
def rewords_errors() -> Iterator[None]:
    """Have errors of ours say what can be done here."""
    try:
        yield
    except BaseException as error:
        reword(error)
        raise


def warn(sentence: str, stacklevel: int) -> None:
    """Warn of something, at a level of the stack above the caller, as `warnings.warn` does."""
    warnings.warn(worded(sentence), stacklevel=stacklevel + 1)


def shell_here() -> Any:
    """Return IPython's shell, if this is a notebook or an IPython terminal."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def has_magics() -> bool:
    """Return whether ``%sky`` can be typed: the output of `jupyter sky run` is read elsewhere."""
    shell = shell_here()
    return shell is not None and not hasattr(shell, "words") and bool(shell.find_line_magic("sky"))
