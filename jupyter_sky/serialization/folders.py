"""Folders of the user's, as they are sent to nodes: each file by its digest, once.

What is left out is what ``.skyignore`` in the folder says, or else what Git leaves out, and always
Git's own folder, caches and virtual environments.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_list
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.protocol.messages import SentFile, SentFolder

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".skyignore"
MOST_FILES = 20_000
"""A folder with more than these is not what was meant."""

_SKIPPED = {".git", ".ipynb_checkpoints", "__pycache__", "node_modules"}


@dataclass(frozen=True)
class FolderContent:
    """A folder, ready to be sent.

    Attributes
    ----------
    folder
        What is in it, and where it is to be.
    blobs
        The content of its files by digest.
    """

    folder: SentFolder
    blobs: dict[str, memoryview]

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file["size"] for file in self.folder["files"].values())


def read_folder(
    source: Path,
    name: str = "workdir",
    target: str = "",
    limit: float | None = None,
    file_name: str | None = None,
) -> FolderContent:
    """Read a folder, or a single file, as it is now.

    Parameters
    ----------
    source
        The folder or file.
    name
        Tells it from others that are sent to the same place.
    target
        Where it is to be on nodes, as `SentFolder` has it; a single file is put into that folder.
    limit
        Bytes that it may have in all.
    file_name
        What a single file is to be called there; by default what it is called here.

    Raises
    ------
    UsageError
        When it is too large, or has what cannot be sent; the sentence says what to do.
    """
    if source.resolve() in (Path.home().resolve(), Path(source.anchor)):
        raise UsageError(
            f"{source} is not sent as a whole: go to the folder of the project with `%cd`, or name "
            "it with `--workdir`."
        )
    root = source if source.is_dir() else source.parent
    paths = list(_entries(source)) if source.is_dir() else [source]
    links = {path: _target(path, root) for path in paths if path.is_symlink()}
    statuses = {path: path.stat() for path in paths if path not in links}
    _check_size(source, root, {path: status.st_size for path, status in statuses.items()}, limit)
    files: dict[str, SentFile] = {}
    found: dict[str, memoryview] = {}
    for path, status in statuses.items():
        content = memoryview(path.read_bytes())
        key = blobs.digest(content)
        files[file_name or _relative(path, root)] = {
            "blob": key,
            "size": content.nbytes,
            "executable": bool(status.st_mode & stat.S_IXUSR),
        }
        if content.nbytes:
            found[key] = content
    said = {_relative(path, root): leads for path, leads in links.items()}
    return FolderContent({"name": name, "target": target, "files": files, "links": said}, found)


def _entries(root: Path) -> Iterator[Path]:
    """Yield the files and symbolic links below a folder that are not left out."""
    rules = _outer_rules(root)
    only = root / IGNORE_FILE
    if only.is_file():
        yield from _walk(root, [(root, _spec(only))], nested=False)
    else:
        yield from _walk(root, rules, nested=True)


_Rules = list[tuple[Path, "GitIgnoreSpec"]]


def _walk(folder: Path, rules: _Rules, nested: bool) -> Iterator[Path]:
    own = folder / ".gitignore"
    if nested and own.is_file():
        rules = [*rules, (folder, _spec(own))]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _SKIPPED or _is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path, rules, nested)
        elif path.is_symlink() or path.is_file():
            yield path


def _is_ignored(path: Path, is_folder: bool, rules: _Rules) -> bool:
    # The rules of the innermost folder say more than those above it.
    for base, spec in reversed(rules):
        text = path.relative_to(base).as_posix() + ("/" if is_folder else "")
        said = spec.check_file(text).include
        if said is not None:
            return bool(said)
    return False


def _outer_rules(root: Path) -> _Rules:
    """Return the rules of the folders above, as far as they are in the same repository."""
    above: list[Path] = []
    for folder in (root, *root.parents):
        if (folder / ".git").exists():
            files = [each / ".gitignore" for each in reversed(above)]
            return [(file.parent, _spec(file)) for file in files if file.is_file()]
        above.append(folder.parent)
    return []


def _spec(file: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(file.read_text(errors="replace").splitlines())


def _target(link: Path, root: Path) -> str:
    """Return where a symbolic link leads, from its own folder."""
    real = link.resolve()
    if not real.is_relative_to(root.resolve()):
        raise UsageError(
            f"{_relative(link, root)} leads out of {root}, to {real}, which is not sent: copy "
            f"what is there, or leave the link out with a line in {IGNORE_FILE}."
        )
    return os.path.relpath(real, link.parent.resolve())


def _check_size(source: Path, root: Path, sizes: dict[Path, int], limit: float | None) -> None:
    if limit is None:
        return
    total = sum(sizes.values())
    if total <= limit and len(sizes) <= MOST_FILES:
        return
    parts: dict[str, list[int]] = {}
    for path, size in sizes.items():
        parts.setdefault(path.relative_to(root).parts[0], []).append(size)
    by_size = total > limit
    largest = sorted(parts, key=lambda part: -(sum(parts[part]) if by_size else len(parts[part])))
    shown = [f"{part} ({_extent(parts[part])})" for part in largest[:3]]
    raise UsageError(
        f"{source} has {_extent(list(sizes.values()))}, in {format_list(shown)}: leave out what "
        f"the script does not need with lines in {IGNORE_FILE}, or add `--allow-large`."
    )


def _extent(sizes: Sequence[int]) -> str:
    return f"{format_bytes(sum(sizes))} in {len(sizes):,} files"


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
