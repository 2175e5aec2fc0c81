"""Completion by Tab on a line of ``%%sky`` or ``%sky``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.options.commands import COMMANDS
from jupyter_sky.notebook.options.definitions import CELL_OPTIONS
from jupyter_sky.notebook.options.option_type import CompletionContext
from jupyter_sky.notebook.session import Session

_OUR_LINE = re.compile(r"\s*(?:\w+\s*=\s*)?(%%?sky\s.*)", re.DOTALL)


class SkyCompleter:
    """Completes ``%%sky`` and ``%sky`` lines, as a matcher of IPython's completer.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters, whose names and ranks can be completed.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session

    @context_matcher(identifier="jupyter_sky")  # type: ignore[untyped-decorator, unused-ignore]
    def match(self, context: Any) -> dict[str, Any]:
        """Return completions of the word at the cursor, as a matcher of IPython."""
        found = _OUR_LINE.fullmatch(context.text_until_cursor)
        if found is None:
            return {"completions": []}
        text = re.split(r"[\s,=]", found[1])[-1]
        words = completions(text, found[1], self._context(context.full_text))
        return {
            "completions": [SimpleCompletion(text=word, type="param") for word in words],
            "matched_fragment": text,
            "ordered": True,
            # Suppress Python names and files of other matchers, which make no sense here.
            "suppress": True,
        }

    def _context(self, cell: str) -> CompletionContext:
        # Tab must not wait for a connection: use only what is already known.
        known = {cluster.name: cluster for cluster in self._session.connected_clusters()}
        current = known.get(self._session.current_name)
        names = list(known)
        with contextlib.suppress(SkyError, OSError):
            names = [row.name for row in registry.rows()]
        return CompletionContext(
            variables=self._shell.user_ns,
            body=cell.partition("\n")[2],
            nodes=tuple(node.ranks for node in current.state.nodes) if current else (),
            clusters=tuple(names),
        )


def completions(text: str, line: str, context: CompletionContext) -> list[str]:
    """Return the completions of a word in a ``%%sky`` or ``%sky`` line.

    Parameters
    ----------
    text
        The word so far; it may be empty.
    line
        The line up to the cursor, with the magic at its beginning and `text` at its end.
    context
        The possible values.
    """
    words = line.removesuffix(text).replace(",", " ").replace("=", " ").split()
    magic, *words = words or [""]
    if magic == "%%sky":
        arguments = CELL_OPTIONS
    elif words and words[0] in COMMANDS:
        arguments = COMMANDS[words.pop(0)][1]
    else:
        return [] if words else _starting_with(text, COMMANDS)

    by_name = {name: each for each in arguments if each.is_option for name in each.names}
    last = max((i for i, word in enumerate(words) if word in by_name), default=-1)
    option, given = (by_name[words[last]] if last >= 0 else None), words[last + 1 :]
    if option and option.type and not given:
        return _starting_with(text, option.type.completions(context))

    # The word is another value of the last option or of the positional argument.
    value_type = option.type if option else None
    if value_type is None or not value_type.many:
        value_type = next((each.type for each in arguments if not each.is_option), None)
        if value_type and given and not value_type.many:
            value_type = None
    offered = value_type.completions(context) if value_type else ()
    values = [value for value in offered if value not in given]
    shown = [each.name for each in arguments if each.is_option and not each.is_internal]
    unused = [name for name in shown if name not in words]
    return _starting_with(text, [*values, *unused, *(["-h"] if text else [])])


def _starting_with(text: str, words: Iterable[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(text)]
