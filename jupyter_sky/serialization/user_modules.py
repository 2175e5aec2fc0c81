"""The user's own modules: which these are, where their files are, and how ranks import them.

A module is the user's own if it is neither installed nor part of the standard library: a file
beside the notebook or on an added path, or an editable install. What pip has put into a folder of
the user's, with ``--target``, is installed. Ranks that see the notebook's files import a module
from there (`ImportPaths`), so that tracebacks, `__file__` and data files beside it are the same.
Other ranks are sent its source files (`SourceTree`).
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import blake3

import jupyter_sky
from jupyter_sky.paths import working_directory
from jupyter_sky.serialization.process.setting import ProcessSetting

LARGE = 1_000_000
"""Bytes above which a file in a package is data, or a checkpoint, and is not sent."""

DATA = 20_000_000
"""Bytes of a package's other files than source that are sent, the smallest first: more are data."""

PROGRAMS = ("__main__", "__mp_main__")
"""Modules whose names are those of a program, in this process and in those that it spawns."""

OF_MAIN = frozenset(
    {"__builtins__", "__builtin__", "__name__", "__doc__", "__loader__", "__package__", "__spec__"}
)
"""What ``__main__`` has for Python itself, in each process its own: `multiprocessing` uses it."""

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SKIPPED = {"__pycache__", "node_modules"}


# Which these are, and where


@functools.cache
def is_user_code(path: str) -> bool:
    """Return whether a file or folder with code is the user's own."""
    # Called for thousands of files: resolve only candidates in the file system.
    path += os.sep
    if path.startswith(_installed_folders()) or any(part in path for part in _INSTALLED):
        return False
    real = str(Path(path).resolve()) + os.sep
    if real.startswith(_installed_folders()) or any(part in real for part in _INSTALLED):
        return False
    return not _is_recorded(path)


def _is_recorded(path: str) -> bool:
    """Return whether pip has put a file or folder where it is."""
    entries: set[str] = set()
    for entry in sys.path:
        # OSError: a relative one, if the working folder is gone; TypeError: Python skips it, too.
        with contextlib.suppress(OSError, TypeError):
            entries.add(os.path.abspath(entry))  # noqa: PTH100  # it leaves no ".." and "/" there
    place = Path(os.path.abspath(path))  # noqa: PTH100
    return any(
        place.parts[len(folder.parts)] in _recorded(folder)
        for folder in place.parents
        if str(folder) in entries
    )


@functools.cache
def _recorded(folder: Path) -> frozenset[str]:
    """Return the names of the files and folders that pip has put into a folder."""
    found: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError):
            lines = record.read_text(errors="replace").splitlines()
            found.update(line.partition(",")[0].partition("/")[0] for line in lines)
    return frozenset(found)


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [*library, site.getusersitepackages(), str(Path(jupyter_sky.__file__).parent)]
    real = (str(Path(folder).resolve()) for folder in folders)
    return tuple(folder + os.sep for folder in {*folders, *real})


def user_source_file(module: ModuleType) -> Path | None:
    """Return the source file of a module that is the user's own; ``None`` for others."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(".py") and is_user_code(file):
        return Path(file)
    return None


def source_location(name: str) -> Path | None:
    """Return the file or folder of a top-level user module; ``None`` for others."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = [path for path in spec.submodule_search_locations or () if is_user_code(path)]
    if folders:
        return Path(folders[0])
    return Path(spec.origin) if spec.has_location and is_user_code(spec.origin) else None


# How ranks import them


@dataclass(frozen=True)
class ImportPaths(ProcessSetting):
    """The working directory of a process, and its ``sys.path``."""

    folder: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> ImportPaths:
        """Return those of this process; raise `SkyError` if its working directory is gone."""
        folder = working_directory()
        return cls(folder, tuple([str(entry) or folder for entry in sys.path]))

    def install(self, store: Path) -> None:
        """Change to the working directory, and import from these paths first."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        sys.path[:] = [*self.path, *(entry for entry in sys.path if entry not in self.path)]


@dataclass(frozen=True)
class SourceTree(ProcessSetting):
    """The files of a top-level module or package.

    Attributes
    ----------
    name
        Its name for imports.
    files
        Their content, by path relative to the folder that it is imported from.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def digest(self) -> str:
        """A digest of its name and files."""
        hasher = blake3.blake3()
        for path, content in sorted(self.files.items()):
            hasher.update(f"{path}\0{len(content)}\0".encode() + content)
        return hasher.hexdigest()[:32]

    def install(self, store: Path) -> None:
        """Write the files, and import the module from there instead of a former version."""
        root = store / f"{self.name}-{self.digest}"
        if not root.exists():
            self._write(root)
        former = _installed.get(self.name)
        _installed[self.name] = root
        sys.path[:] = [str(root), *(entry for entry in sys.path if entry != str(former))]
        if former not in (None, root):
            self._move(str(former), str(root))

    def _write(self, root: Path) -> None:
        # Ranks of a node may do this at the same time: the rename is atomic, and one of them wins.
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            part = Path(folder) / "tree"
            for path, content in self.files.items():
                (part / path).parent.mkdir(parents=True, exist_ok=True)
                (part / path).write_bytes(content)
            with contextlib.suppress(OSError):
                part.rename(root)

    def _move(self, former: str, root: str) -> None:
        """Point modules that are already imported to the new files."""

        def moved(path: str) -> str:
            return root + path.removeprefix(former) if path.startswith(former) else path

        for name, module in list(sys.modules.items()):
            if name == self.name or name.startswith(f"{self.name}."):
                if isinstance(file := getattr(module, "__file__", None), str):
                    module.__file__ = moved(file)
                if hasattr(module, "__path__"):
                    module.__path__ = [moved(path) for path in module.__path__]


_installed: dict[str, Path] = {}
"""The folder from which each top-level module is imported, if it was sent."""


def source_trees(names: Iterable[str]) -> Iterator[SourceTree]:
    """Yield the user's own modules among ``names``, and those that these import.

    Parameters
    ----------
    names
        Names of modules, like ``package.module``.
    """
    for name, location, files in _walk(names, _read_all):
        root = location.parent
        yield SourceTree(
            name, {str(path.relative_to(root)): file.content for path, file in files.items()}
        )


def imports_of(names: Iterable[str]) -> frozenset[str]:
    """Return the modules in ``names``, or imported by the user's own, that are not the user's own.

    Files that cannot be read count as without imports.

    Parameters
    ----------
    names
        Names of modules, like ``package.module``.
    """
    given = frozenset(names)
    own, found = set(), set(given)
    for name, _, files in _walk(given, _read_sources):
        own.add(name)
        found.update(each for file in files.values() for each in file.imports)
    return frozenset(each for each in found if each.partition(".")[0] not in own)


def _walk(
    names: Iterable[str], read: Callable[[Path], Mapping[Path, _File]]
) -> Iterator[tuple[str, Path, Mapping[Path, _File]]]:
    """Yield the user's own modules among ``names``, and those that these import, with files.

    Parameters
    ----------
    names
        Names of modules, like ``package.module``.
    read
        Returns the files of a module, or of a package in a folder.
    """
    waiting = sorted({name.partition(".")[0] for name in names}, reverse=True)
    seen = {"__main__", *waiting}
    while waiting:
        name = waiting.pop()
        location = None if name == "__main__" else source_location(name)
        if location is None:
            continue
        files = read(location)
        yield name, location, files
        tops = {each.partition(".")[0] for file in files.values() for each in file.imports}
        waiting.extend(sorted(tops - seen, reverse=True))
        seen |= tops


def _read_all(location: Path) -> dict[Path, _File]:
    """Return what is sent of a module, as far as it can be read."""
    found, room = {}, DATA
    for size, path in sorted(_files(location)):
        room -= size
        if room < 0:
            break
        with contextlib.suppress(OSError):
            found[path] = _read(path)
    return found


def _read_sources(location: Path) -> dict[Path, _File]:
    """Return the files of Python that can be read: data of packages may be any number of bytes."""
    found = {}
    for _, path in _files(location):
        if path.suffix == ".py":
            with contextlib.suppress(OSError):
                found[path] = _read(path)
    return found


def _files(location: Path) -> Iterator[tuple[int, Path]]:
    """Yield the files of a module, each with the bytes of data that it has: none in source."""
    if _is_file(location):
        yield 0, location
        return
    for folder, folders, names in os.walk(location):
        # Skip hidden folders and virtual environments.
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".")
            and each not in _SKIPPED
            and not _is_file(Path(folder) / each / "pyvenv.cfg")
        )
        for name in sorted(names):
            path = Path(folder) / name
            if name.startswith(".") or not _is_file(path):
                continue
            if name.endswith(".py"):
                yield 0, path
                continue
            with contextlib.suppress(OSError):  # a program has just removed it
                if (size := path.stat().st_size) <= LARGE:
                    yield size, path


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):  # of a folder that may not be searched
        return path.is_file()
    return False


@dataclass(frozen=True)
class _File:
    """The state of a file when it was read, and the modules that it imports."""

    changed: tuple[int, int]
    content: bytes
    imports: frozenset[str]


_read_before: dict[Path, _File] = {}


def _read(path: Path) -> _File:
    status = path.stat()
    changed = (status.st_mtime_ns, status.st_size)
    file = _read_before.get(path)
    if file is None or file.changed != changed:
        content = path.read_bytes()
        imports = imported_by(content) if path.suffix == ".py" else frozenset[str]()
        file = _read_before[path] = _File(changed, content, imports)
    return file


def imported_by(source: bytes, package: str = "") -> frozenset[str]:
    """Return the modules that a file imports, possibly with names of other objects among them.

    Parameters
    ----------
    source
        Its content.
    package
        The package that it belongs to; if not given, relative imports are left out.
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
