"""How the notebook has configured its loggers, so that ranks log as much in the same format.

Many notebooks call ``logging.basicConfig(level=logging.INFO)`` in their first cell. Without it, a
rank would silently drop what a cell logs.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.serialization.process.setting import ProcessSetting

Printing = tuple[bool, int, str | None, str | None, str]
"""A handler that prints: whether to stdout, its level, and what its formatter was made of."""


@dataclass(frozen=True)
class LogSettings(ProcessSetting):
    """The configuration of a logger.

    Attributes
    ----------
    name
        The name of the logger; "root" for the root logger.
    level
        Its level.
    propagates
        Whether its messages propagate to its parents.
    handlers
        Its handlers that print, on ranks.
    """

    name: str
    level: int
    propagates: bool
    handlers: tuple[Printing, ...]

    @classmethod
    def of(cls, logger: logging.Logger) -> LogSettings:
        """Return the configuration of a logger in this process.

        What ``logging.basicConfig(filename=…)`` writes into a file, ranks print: it would be in
        files of many nodes, or of one that the notebook writes from its beginning. Files of other
        loggers are mostly those of libraries, with records that nobody wants to see. What
        a handler of a library shows in its own way, as rich's, they print plainly: nodes may not
        have that library.
        """
        handlers = [each for each in logger.handlers if _prints(each)]
        if not handlers:
            handlers = [each for each in logger.handlers if _is_of_another_library(each)]
        if not handlers and logger is logging.root:
            handlers = [each for each in logger.handlers if _writes_file(each)]
        described = tuple(map(_described, handlers))
        return cls(logger.name, logger.level, bool(logger.propagate), described)

    @property
    def is_usual(self) -> bool:
        """Whether it is Python's default configuration."""
        level = logging.WARNING if self.name == "root" else logging.NOTSET
        return self == LogSettings(self.name, level, True, ())

    def apply(self) -> logging.Logger:
        """Configure the logger of that name, except its handlers if it has handlers of its own."""
        logger = logging.getLogger(self.name)
        logger.setLevel(self.level)
        logger.propagate = self.propagates
        for each in [each for each in logger.handlers if each in _installed]:
            logger.removeHandler(each)
        for printing in () if logger.handlers else self.handlers:
            handler = _made(*printing)
            _installed.add(handler)
            logger.addHandler(handler)
        return logger

    def install(self, store: Path) -> None:
        """Configure the logger."""
        self.apply()


_installed: weakref.WeakSet[logging.Handler] = weakref.WeakSet()


def _prints(handler: logging.Handler) -> bool:
    return (
        isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
        and not isinstance(handler.stream, io.StringIO)
    )


def _is_of_another_library(handler: logging.Handler) -> bool:
    """Return whether a handler derives from none of Python's, which print, send, store or drop."""
    modules = ("logging", "logging.handlers")
    known = [each for each in type(handler).__mro__ if each.__module__ in modules]
    return known[:1] == [logging.Handler]


def _writes_file(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.FileHandler) and handler.baseFilename != os.devnull


def _described(handler: logging.Handler) -> Printing:
    stream = getattr(handler, "stream", None)
    to_stdout = getattr(stream, "name", None) in ("stdout", "<stdout>")
    formatter = handler.formatter
    if type(formatter) is not logging.Formatter:
        return to_stdout, handler.level, None, None, "%"
    styles: dict[str, Any] = vars(logging)["_STYLES"]
    style = next((key for key, each in styles.items() if each[0] is type(formatter._style)), "%")
    return to_stdout, handler.level, formatter._fmt, formatter.datefmt, style


def _made(
    to_stdout: bool, level: int, form: str | None, dates: str | None, style: Any
) -> logging.Handler:
    handler = logging.StreamHandler(sys.stdout if to_stdout else sys.stderr)
    handler.setLevel(level)
    if form is not None:
        handler.setFormatter(logging.Formatter(form, dates, style))
    return handler


def reduce(logger: Any) -> Any:
    """Reduce a logger to its configuration; return `NotImplemented` for other objects.

    Parameters
    ----------
    logger
        An object of `logging`.
    """
    if not isinstance(logger, logging.Logger) or logger is logging.root:
        return NotImplemented
    settings = LogSettings.of(logger)
    return NotImplemented if settings.is_usual else (LogSettings.apply, (settings,))
