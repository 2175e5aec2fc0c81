"""Which files of a folder are sent to nodes.

Files that ``.skyignore`` in the folder lists are left out, or else those that Git ignores; Git's
own folder, caches and virtual environments are always left out. The rules of a repository hold for
a folder in it, unless they leave it out as a whole, as ``data/`` does: who names it wants it sent.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_sky.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".skyignore"

_SKIPPED = {".git", ".ipynb_checkpoints", "__pycache__", "node_modules"}

_ANY_NAME = "\N{REPLACEMENT CHARACTER}"
"""A name that a rule is about only if it is about every name."""

_Entry = tuple[str, os.stat_result]
"""Where something is in the folder, with a slash behind a folder, and what its status is."""


@dataclass(frozen=True)
class _Rules:
    """The rules of one file, for paths below the root.

    Attributes
    ----------
    above
        What is put before a path for these rules.
    start
        Where in the path that is put, in place of what comes before.
    lines
        The lines of the file that have a pattern.
    spec
        These patterns.
    """

    above: str
    start: int
    lines: list[str]
    spec: GitIgnoreSpec

    def line_about(self, path: str) -> str | None:
        """Return the line that decides about a path; a folder's ends with a slash."""
        place = self.above + path[self.start :]
        if not place.endswith("/"):
            index = self.spec.check_file(place).index
            return None if index is None else self.lines[index]
        # Of a folder, pathspec would say what becomes of a file in it.
        matching = (at for at, each in enumerate(self.spec.patterns) if each.match_file(place))
        last = max(matching, default=None)
        return None if last is None else self.lines[last]


def entries(root: Path) -> Iterator[_Entry]:
    """Yield what is below a folder and not ignored: files, links and folders without those."""
    only = root / IGNORE_FILE
    if only.is_file():
        yield from _walk(str(root), "", [_read(only)], nested=False)
    else:
        yield from _walk(str(root), "", _outer_rules(root), nested=True)


def unreadable(path: str, error: OSError) -> UsageError:
    """Return the error for a file or folder that cannot be read."""
    return UsageError(
        f"{path} cannot be read ({error.strerror}): make it readable, or leave it out with a line "
        f"in {IGNORE_FILE}."
    )


def _walk(folder: str, place: str, rules: list[_Rules], nested: bool) -> Iterator[_Entry]:
    try:
        with os.scandir(folder) as found:
            there = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return  # a program has just removed it
    except OSError as error:
        raise unreadable(folder, error) from None
    names = {entry.name for entry in there}
    if "pyvenv.cfg" in names and place:
        return
    if nested and ".gitignore" in names and (own := Path(folder, ".gitignore")).is_file():
        rules = [*rules, _read(own, start=len(place))]
    is_empty = bool(place)
    for entry in there:
        path = place + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in _SKIPPED or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            for below in _walk(entry.path, f"{path}/", rules, nested):
                is_empty = False
                yield below
        elif entry.is_symlink() or entry.is_file():
            is_empty = False
            with contextlib.suppress(FileNotFoundError):
                yield path, entry.stat(follow_symlinks=False)
    if is_empty:
        with contextlib.suppress(FileNotFoundError):
            yield place, Path(folder).lstat()


def _is_ignored(path: str, is_folder: bool, rules: list[_Rules]) -> bool:
    line = _line_about(path + "/" * is_folder, rules)
    return line is not None and not line.startswith("!")


def _line_about(path: str, rules: list[_Rules]) -> str | None:
    # The rules of the innermost folder override those above it.
    lines = (each.line_about(path) for each in reversed(rules))
    return next((line for line in lines if line is not None), None)


def _outer_rules(root: Path) -> list[_Rules]:
    """Return the rules of the parent folders up to the root of the repository."""
    repository = next((each for each in (root, *root.parents) if (each / ".git").exists()), root)
    names = root.relative_to(repository).parts
    within: list[_Rules] = []
    below: list[_Rules] = []
    for depth in range(len(names)):
        file = Path(repository, *names[:depth], ".gitignore")
        if file.is_file():
            within.append(_read(file, start=sum(len(each) + 1 for each in names[:depth])))
            below.append(_read(file, above="/".join(names[depth:]) + "/"))
        if _is_ignored("/".join(names[: depth + 1]), True, within):
            return []
    about_all = _line_about("/".join([*names, _ANY_NAME]), within)
    # What is about names alone, like `*`, says nothing of this folder.
    leaves_all_out = about_all and about_all[0] != "!" and "/" in about_all.rstrip("/")
    return [] if leaves_all_out else below


def _read(file: Path, above: str = "", start: int = 0) -> _Rules:
    """Read the rules of a file; as in Git, lines that are none have no effect."""
    from pathspec import GitIgnoreSpec

    # Other characters end no line, as the one of `Icon[\r]`, which many files have.
    try:
        content = file.read_bytes()
    except OSError as error:
        raise unreadable(str(file), error) from None
    lines = re.split(r"\r?\n", content.decode("utf-8-sig", errors="replace"))
    rules = [(line, pattern) for line in lines for pattern in _patterns(line)]
    return _Rules(
        above, start, [line for line, _ in rules], GitIgnoreSpec([each for _, each in rules])
    )


def _patterns(line: str) -> Sequence[Any]:
    """Return the pattern of a line, if it has one."""
    from pathspec import GitIgnoreSpec

    try:
        return list(GitIgnoreSpec.from_lines([line]).patterns)
    except ValueError:
        return []
