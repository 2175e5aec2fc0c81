"""Recognises cells that IPython would not transform: most are, and transforming takes long."""

from __future__ import annotations

import keyword
import re
from typing import Any

from IPython.core.autocall import IPyAutocall
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.macro import Macro

# What may begin a command, a magic or a help request, or be a prompt or an indentation to remove.
# If it turns out to be an operator or part of a string, IPython has merely looked in vain. As that
# takes it half a millisecond for a dozen lines, an operator within a line is not among it.
_SPECIAL = re.compile(
    r"[\r\f\v\x1c-\x1e\x85\u2028\u2029]"  # IPython begins another line there
    r"|^[ \t]*(?:[%!?/,;>]|\.\.\.|In \[)"
    r"|=[ \t]*[%!]"
    r"|\?[ \t]*$"
    r"|^[ \t]+$",
    re.MULTILINE,
)
_FIRST_WORD = re.compile(r"\w+")
_CALLED_OR_ASSIGNED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)[ \t]*[=(]")
_USUAL = TransformerManager()


def as_it_is(shell: Any, cell: str) -> str | None:
    """Return a cell that IPython would not change; ``None`` if IPython has to look.

    Parameters
    ----------
    shell
        The shell, to which the user may have added transformations.
    cell
        The cell.
    """
    if not cell or cell[0].isspace() or _SPECIAL.search(cell) or not _is_usual(shell):
        return None
    # A single line may be a magic without its `%`, or a call without parentheses.
    if cell.find("\n", 0, -1) < 0 and not (_has_usual_checkers(shell) and _is_plain(shell, cell)):
        return None
    return cell if cell.endswith("\n") else f"{cell}\n"


def _is_plain(shell: Any, line: str) -> bool:
    """Return whether a single line begins with a keyword, or calls or assigns what is no magic."""
    word = _FIRST_WORD.match(line)
    if word is None or keyword.iskeyword(word[0]):
        return word is not None
    used = _CALLED_OR_ASSIGNED.match(line)
    if used is None or shell.autocall or shell.find_magic(used[1]) is not None:
        return False
    return not isinstance(shell.user_ns.get(used[1]), (IPyAutocall, Macro))


def remember_checkers(shell: Any) -> None:
    """Remember a shell's own checkers of single lines, before the user can add any."""
    global _checkers
    _checkers = len(shell.prefilter_manager.checkers)


_checkers = 0


def _is_usual(shell: Any) -> bool:
    manager = shell.input_transformer_manager
    return (
        not shell.input_transformers_post
        and manager.cleanup_transforms == _USUAL.cleanup_transforms
        and manager.line_transforms == _USUAL.line_transforms
        and manager.token_transformers == _USUAL.token_transformers
    )


def _has_usual_checkers(shell: Any) -> bool:
    filters = shell.prefilter_manager
    return not filters.transformers and len(filters.checkers) == _checkers
