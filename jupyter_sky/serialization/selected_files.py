"""Which files of a folder are sent to nodes.

Files that ``.skyignore`` in the folder lists are left out, or else those that Git ignores; Git's
own folder, caches and virtual environments are always left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".skyignore"

_SKIPPED = {".git", ".ipynb_checkpoints", "__pycache__", "node_modules"}

_Entry = tuple[str, os.stat_result]
"""Where something is in the folder, with a slash behind a folder, and what its status is."""

_Rule = tuple[str, int, "GitIgnoreSpec"]
"""What a path below the root begins with for these rules, and where in it that is put."""


def entries(root: Path) -> Iterator[_Entry]:
    """Yield what is below a folder and not ignored: files, links and folders without those."""
    only = root / IGNORE_FILE
    if only.is_file():
        yield from _walk(str(root), "", [("", 0, _spec(only))], nested=False)
    else:
        yield from _walk(str(root), "", _outer_rules(root), nested=True)


def _walk(folder: str, place: str, rules: list[_Rule], nested: bool) -> Iterator[_Entry]:
    with os.scandir(folder) as found:
        there = sorted(found, key=lambda entry: entry.name)
    names = {entry.name for entry in there}
    if "pyvenv.cfg" in names and place:
        return
    if nested and ".gitignore" in names and (own := Path(folder, ".gitignore")).is_file():
        rules = [*rules, ("", len(place), _spec(own))]
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
            yield path, entry.stat(follow_symlinks=False)
    if is_empty:
        yield place, Path(folder).lstat()


def _is_ignored(path: str, is_folder: bool, rules: list[_Rule]) -> bool:
    # The rules of the innermost folder override those above it.
    for above, start, spec in reversed(rules):
        said = spec.check_file(above + path[start:] + "/" * is_folder).include
        if said is not None:
            return bool(said)
    return False


def _outer_rules(root: Path) -> list[_Rule]:
    """Return the rules of the parent folders up to the root of the repository."""
    above: list[Path] = []
    for folder in (root, *root.parents):
        if (folder / ".git").exists():
            files = [each / ".gitignore" for each in reversed(above)]
            return [
                (f"{root.relative_to(file.parent).as_posix()}/", 0, _spec(file))
                for file in files
                if file.is_file()
            ]
        above.append(folder.parent)
    return []


def _spec(file: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(file.read_text(errors="replace").splitlines())
