"""The person's own modules: which they are, where they lie, and how they get to a rank.

A module is the person's own if it is neither installed nor of Python's library: a file beside the
notebook, on a path that was added, or a package that is installed as editable. A rank that shares
the notebook's files imports it from there (`Place`): copies would only differ from what tracebacks,
`__file__` and data files beside it say. To other ranks its source files travel (`Tree`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import blake3

import jupyter_sky

LARGE = 1_000_000
"""Bytes above which a file beside a module is data, or a checkpoint, and stays where it is."""

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SKIPPED = {"__pycache__", "node_modules"}


# Where they are


@functools.cache
def is_own(path: str) -> bool:
    """Return whether a file or folder with code is the person's own."""
    # Thousands of files are looked at; few of them need the file system to be asked.
    path += os.sep
    if path.startswith(_foreign_folders()) or any(part in path for part in _INSTALLED):
        return False
    place = str(Path(path).resolve()) + os.sep
    return not place.startswith(_foreign_folders()) and all(
        part not in place for part in _INSTALLED
    )


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*library, site.getusersitepackages(), str(Path(jupyter_sky.__file__).parent)]
    places = {*folders, *(str(Path(folder).resolve()) for folder in folders)}
    return tuple(place + os.sep for place in places)


def own_file(module: ModuleType) -> Path | None:
    """Return the source file of a module of the person's; ``None`` for others."""
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and file.endswith(".py") and is_own(file) else None


def home(name: str) -> Path | None:
    """Return the file or folder of a top-level module of the person's; ``None`` for others."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = [path for path in spec.submodule_search_locations or () if is_own(path)]
    if folders:
        return Path(folders[0])
    return Path(spec.origin) if spec.has_location and is_own(spec.origin) else None


# How they get to a rank


@dataclass(frozen=True)
class Place:
    """Where a process stands: its folder, and where it imports from."""

    folder: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> Place:
        """Return where this process stands."""
        folder = str(Path.cwd())
        return cls(folder, tuple(entry or folder for entry in sys.path))

    def install(self, store: Path) -> None:
        """Stand there as well."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        sys.path[:] = [*self.path, *(entry for entry in sys.path if entry not in self.path)]


@dataclass(frozen=True)
class Tree:
    """The files of a top-level module.

    Attributes
    ----------
    name
        What it is imported as.
    files
        Their content, by path below the folder that it is imported from.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def digest(self) -> str:
        """A digest of all that is in it."""
        hasher = blake3.blake3()
        for path, content in sorted(self.files.items()):
            hasher.update(f"{path}\0{len(content)}\0".encode() + content)
        return hasher.hexdigest()[:32]

    def install(self, store: Path) -> None:
        """Have it imported from files in ``store``, in place of a former version of it."""
        root = store / f"{self.name}-{self.digest}"
        if not root.exists():
            self._write(root)
        former = _installed.get(self.name)
        _installed[self.name] = root
        sys.path[:] = [str(root), *(entry for entry in sys.path if entry != str(former))]
        if former not in (None, root):
            self._move(str(former), str(root))

    def _write(self, root: Path) -> None:
        # Ranks of a node may do this at once; the rename lets one win whole.
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            part = Path(folder) / "tree"
            for path, content in self.files.items():
                (part / path).parent.mkdir(parents=True, exist_ok=True)
                (part / path).write_bytes(content)
            with contextlib.suppress(OSError):
                part.rename(root)

    def _move(self, former: str, root: str) -> None:
        """Have the modules that are imported already belong to the new files."""

        def moved(path: str) -> str:
            return root + path.removeprefix(former) if path.startswith(former) else path

        for name, module in list(sys.modules.items()):
            if name == self.name or name.startswith(f"{self.name}."):
                if isinstance(file := getattr(module, "__file__", None), str):
                    module.__file__ = moved(file)
                if hasattr(module, "__path__"):
                    module.__path__ = [moved(path) for path in module.__path__]


_installed: dict[str, Path] = {}


def trees(names: Iterable[str]) -> Iterator[Tree]:
    """Yield those modules among ``names`` that are the person's, and those that these import.

    Parameters
    ----------
    names
        Names of modules, like ``package.module``.
    """
    waiting = sorted({name.partition(".")[0] for name in names}, reverse=True)
    seen = {"__main__", *waiting}
    while waiting:
        name = waiting.pop()
        place = None if name == "__main__" else home(name)
        if place is None:
            continue
        tree = Tree(
            name, {str(path.relative_to(place.parent)): _content(path) for path in _files(place)}
        )
        imported = {top for path in _files(place) for top in _imports(path)}
        waiting.extend(sorted(imported - seen, reverse=True))
        seen |= imported
        yield tree


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        # What is hidden, and environments, are not part of a package.
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".")
            and each not in _SKIPPED
            and not (Path(folder) / each / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(folder) / name
            if name.startswith(".") or not path.is_file():
                continue
            if name.endswith(".py") or path.stat().st_size <= LARGE:
                yield path


_contents: dict[Path, tuple[tuple[int, int], bytes, frozenset[str]]] = {}


def _content(path: Path) -> bytes:
    return _read(path)[1]


def _imports(path: Path) -> frozenset[str]:
    return _read(path)[2]


def _read(path: Path) -> tuple[tuple[int, int], bytes, frozenset[str]]:
    status = path.stat()
    stamp = (status.st_mtime_ns, status.st_size)
    known = _contents.get(path)
    if known is None or known[0] != stamp:
        content = path.read_bytes()
        names = imported_by(content) if path.suffix == ".py" else frozenset[str]()
        imports = frozenset(name.partition(".")[0] for name in names)
        known = _contents[path] = (stamp, content, imports)
    return known


def imported_by(source: bytes, package: str = "") -> frozenset[str]:
    """Return the modules that a file imports; what is no module may be among them.

    Parameters
    ----------
    source
        Its content.
    package
        The package that it belongs to, without which imports that begin with a dot are left out.
    """
    names: set[str] = set()
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (package or not node.level):
                base = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(base, package) if node.level else base
                names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return frozenset(names)
