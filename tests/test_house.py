"""The rooms of the package import downwards only, without circles, and stay small.

CONTRIBUTING.md shows the plan.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

import jupyter_sky

PACKAGE = "jupyter_sky"
ROOT = Path(jupyter_sky.__file__).parent
TESTS = Path(__file__).parent

LARGEST_FOLDER = 14  # files
LONGEST_FILE = 400  # lines

STACK = ("notebook", "plugins", "api", "cluster", "providers", "serialization", "transport")
MAY_IMPORT = {room: {*STACK[level + 1 :], "analysis"} for level, room in enumerate(STACK)}
MAY_IMPORT["analysis"] = set()
MAY_IMPORT["transport"] = set()
MAY_IMPORT["node"] = {"serialization", "transport", "analysis"}
MAY_IMPORT["server"] = {"cluster"}

# The root resolves public names lazily, so it reaches every room, and so does what a terminal
# starts; the ground below all rooms belongs to all, and imports nothing but itself.
GROUND = {f"{PACKAGE}.{name}" for name in ("errors", "formatting", "imports", "paths")}
FREE = {PACKAGE, f"{PACKAGE}.__main__", *GROUND}


def violations(root: Path) -> list[str]:
    """Every import below `root` that the plan forbids, as "file:line: what, and the rule"."""
    found = []
    for path in sorted(root.rglob("*.py")):
        module = module_name(path, root)
        if module in FREE:
            continue
        place = path.relative_to(root.parent)
        room = room_of(module)
        if room not in MAY_IMPORT:
            found.append(f"{place}:1: {room!r} is not a room; the rooms are {listed(MAY_IMPORT)}")
            continue
        is_package = path.name == "__init__.py"
        for line, target in imports(parsed(path), module, is_package):
            if target not in FREE and room_of(target) not in MAY_IMPORT[room] | {room}:
                allowed = listed(MAY_IMPORT[room]) or "no other room"
                found.append(f"{place}:{line}: imports {target}; {room} may import {allowed}")
    return found


def imports(
    tree: ast.AST, module: str, is_package: bool, modules: Collection[str] = ()
) -> Iterator[tuple[int, str]]:
    """The line and full name of each module of ours that `tree` imports, wherever it does.

    What is imported from a package is the package, unless it is one of `modules`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                package = absolute(base, level, module, is_package)
                targets = [home(package, alias.name, modules) for alias in names]
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                targets = [name]
            case _:
                continue
        for target in targets:
            if target == PACKAGE or target.startswith(f"{PACKAGE}."):
                yield node.lineno, target


def absolute(base: str | None, level: int, module: str, is_package: bool) -> str:
    """What ``from {level dots}{base}`` means inside `module`."""
    if level == 0:
        return base or ""
    parts = module.split(".")
    parents = parts[: len(parts) - level + is_package]
    return ".".join([*parents, base] if base else parents)


def home(package: str, name: str, modules: Collection[str] = ()) -> str:
    """The module that ``from package import name`` reaches, through the root's lazy names too."""
    if f"{package}.{name}" in modules:
        return f"{package}.{name}"
    if package != PACKAGE or name.startswith("__"):
        return package
    return jupyter_sky._HOMES.get(name, f"{package}.{name}").partition(":")[0]


@cache
def parsed(path: Path) -> ast.Module:
    """A file's code; most of these tests look at all files."""
    return ast.parse(path.read_bytes())


@cache
def graph(root: Path) -> dict[str, set[str]]:
    """The modules below `root`, each with those that it imports, wherever it does."""
    modules = {module_name(path, root): path for path in root.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = imports(parsed(path), module, path.name == "__init__.py", modules)
        found[module] = {target for _, target in targets} & modules.keys() - {module}
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            members = stack[stack.index(module) :]
            del stack[-len(members) :]
            if len(members) > 1:
                found.append(sorted(members))

    for module in sorted(edges):
        if module not in index:
            visit(module)
    return found


def folders(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The folders inside of rooms, each with those of its own room that it imports."""
    found: dict[str, set[str]] = {}
    for module, targets in edges.items():
        for target in targets:
            here, there = module.split("."), target.split(".")
            if min(len(here), len(there)) > 3 and here[1] == there[1] and here[2] != there[2]:
                found.setdefault(".".join(here[:3]), set()).add(".".join(there[:3]))
    return found


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1]


def listed(rooms: set[str] | dict[str, set[str]]) -> str:
    return ", ".join(sorted(rooms))


def test_every_import_points_downwards() -> None:
    assert not (found := violations(ROOT)), "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        (
            "node/rank.py",
            "import jupyter_sky.cluster.run",
            "node may import analysis, ser",
        ),
        ("transport/link.py", "from jupyter_sky.node import agent", "may import no other room"),
        ("transport/link.py", "from ..cluster import run", "may import no other room"),
        ("transport/__init__.py", "from ..api.pool import Compute", "may import no other room"),
        ("cluster/run.py", "def f():\n    from jupyter_sky.api import pool", "imports jupyter_sky"),
        ("cluster/run.py", "import importlib as i\ni.import_module('jupyter_sky.api')", ":2:"),
        ("cluster/run.py", "if TYPE_CHECKING:\n    import jupyter_sky.plugins", ":2:"),
        ("providers/local.py", "from jupyter_sky import ComputePool", "jupyter_sky.api.pool"),
        (
            "api/pool.py",
            "from jupyter_sky import notebook",
            "api may import analysis, clu",
        ),
        ("server/app.py", "import jupyter_sky.transport", "server may import cluster"),
        ("helpers.py", "", "'helpers' is not a room"),
    ],
)
def test_a_forbidden_import_is_named(tmp_path: Path, module: str, source: str, rule: str) -> None:
    path = tmp_path / PACKAGE / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    [message] = violations(tmp_path / PACKAGE)
    assert message.startswith(f"{PACKAGE}/{module}:")
    assert rule in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("notebook/magics.py", "from jupyter_sky.transport import frames"),
        ("notebook/magics.py", "from .options import parse"),
        ("api/__init__.py", "from .pool import Compute"),
        ("node/agent.py", "from jupyter_sky.errors import SkyError"),
        ("server/app.py", "import jupyter_sky\nfrom jupyter_sky import __version__"),
        ("cluster/run.py", "import torch\nfrom json import loads"),
    ],
)
def test_an_allowed_import_is_not(tmp_path: Path, module: str, source: str) -> None:
    path = tmp_path / PACKAGE / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path / PACKAGE) == []


def test_no_circle_of_files() -> None:
    # The root's names are lazy: what they reach is not what the root imports.
    edges = {module: targets for module, targets in graph(ROOT).items() if module not in FREE}
    assert circles(edges) == []


def test_no_circle_of_folders() -> None:
    assert circles(folders(graph(ROOT))) == []


def test_a_circle_is_named() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_folders_and_files_are_small() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {path: size for path, size in sizes.items() if size > LONGEST_FILE} == {}
    counts = Counter(path.parent for path in [*sizes, *TESTS.rglob("*.py")])
    assert {folder: count for folder, count in counts.items() if count > LARGEST_FOLDER} == {}


def test_a_name_is_that_of_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_what_is_of_one_provider_stays_in_its_folder() -> None:
    """Beside its folder, only the notebook, where its options are typed, knows a provider."""
    own = re.compile(r"\b(aws|ec2|boto3?|amazon|moto|slurm|sbatch|srun)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in ("cluster", "serialization", "transport", "analysis")
        for path in sorted((ROOT / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if own.search(line)
    ]
    assert found == []
    inside = {
        module: targets
        for module, targets in graph(ROOT).items()
        if not module.startswith((f"{PACKAGE}.notebook.", f"{PACKAGE}.providers.aws"))
    }
    users = {
        module
        for module, targets in inside.items()
        if any(target.startswith(f"{PACKAGE}.providers.aws") for target in targets)
    }
    assert users <= {PACKAGE, f"{PACKAGE}.providers"}
