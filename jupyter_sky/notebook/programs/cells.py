"""The cells of a notebook file, or of a script with ``# %%`` above each cell."""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_file

_MARK = re.compile(r"#\s*(%%(\s.*)?|In\[[ \d]*\]:?)$")
"""What is above each cell: for Jupytext and editors, and, as nbconvert writes it, ``# In[1]:``."""
_COMMENT = re.compile(r"^# ?")
_MAGIC = re.compile(r"#\s?(%%?[A-Za-z]|!)")


@dataclass(frozen=True)
class SourceCell:
    """A cell with code.

    Attributes
    ----------
    number
        Its number among the cells with code, from 1.
    typed
        Its source.
    may_fail
        Whether the notebook continues after an error in it, by its tag ``raises-exception``.
    above
        The number of lines of its script above it; 0 in a notebook.
    is_script
        Whether it is a script as a whole, without ``# %%``: it runs on the cluster.
    """

    number: int
    typed: str
    above: int = 0
    may_fail: bool = False
    is_script: bool = False

    @property
    def text(self) -> str:
        """The code to run."""
        if self.is_script and not self.typed.lstrip().startswith("%%"):
            return f"%%sky\n{self.typed}"
        return self.typed


def read_cells(path: Path) -> list[SourceCell]:
    """Return the cells of a file that have code.

    A script without such marks is a single cell, which runs on the cluster as a whole.

    Raises
    ------
    UsageError
        If there is no such file, or it is neither a notebook nor a script.
    """
    try:
        text = _text_of_script(path) if path.suffix == ".py" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        instead = similar_file(path, "name a notebook or a script.")
        raise UsageError(f"{path} cannot be read ({why}): {instead}") from None
    is_script = False
    match path.suffix:
        case ".ipynb":
            found = list(_of_notebook(path, text))
        case ".py":
            found = list(_of_script(text))
            is_script = not found
            found = found or [(text, 0, False)]
        case _:
            raise UsageError(f"{path} is neither a notebook (.ipynb) nor a script (.py).")
    numbered = (each for each in found if each[0].strip())
    return [SourceCell(number, *each, is_script) for number, each in enumerate(numbered, 1)]


def _text_of_script(path: Path) -> str:
    """Return the text of a script in the encoding that it names, as Python reads it."""
    with tokenize.open(path) as file:
        return file.read()


def _of_notebook(path: Path, text: str) -> Iterator[tuple[str, int, bool]]:
    try:
        cells: Sequence[Any] = json.loads(text)["cells"]
        for cell in cells:
            if cell["cell_type"] == "code":
                tags = cell.get("metadata", {}).get("tags", ())
                yield "".join(cell["source"]), 0, "raises-exception" in tags
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path} is no notebook of today's format: open it in Jupyter and save it again."
        ) from None


def _of_script(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield the cells of a script that has ``# %%`` lines, each with its first line."""
    lines = text.splitlines(keepends=True)
    marks = [at for at, line in enumerate(lines) if _MARK.match(line.rstrip())]
    if not marks:
        return
    yield "".join(lines[: marks[0]]), 0, False
    for at, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        if re.search(r"\[(markdown|md|raw)\]", lines[at]):
            continue
        if magic := _of_language(lines[at]):
            code = "".join(_COMMENT.sub("", line) for line in lines[at + 1 : end])
            yield magic + code, at, False
        else:
            yield _with_magics(lines[at + 1 : end]), at + 1, False


def _of_language(mark: str) -> str:
    """Return a line like ``%%bash``, which Jupytext keeps in the mark; its cell is a comment."""
    if not (language := re.search(r'\blanguage="(\w+)"', mark)):
        return ""
    words = re.search(r'\bmagic_args="([^"]*)"', mark)
    return f"%%{language[1]} {words[1] if words else ''}".rstrip() + "\n"


def _with_magics(lines: Sequence[str]) -> str:
    """Return a cell with its magics uncommented, which other tools keep as comments in scripts."""
    return "".join(_MAGIC.sub(r"\1", line) if _MAGIC.match(line) else line for line in lines)
