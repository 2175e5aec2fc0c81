"""`jupyter_sky.errors` opens with the tree of all exceptions: it is the real one."""

from __future__ import annotations

import ast
import builtins
import pickle
from pathlib import Path

import pytest

import jupyter_sky
from jupyter_sky import errors

ROOT = Path(jupyter_sky.__file__).parent


def defined() -> dict[str, tuple[str, list[str]]]:
    """Every public exception of the package: the file it is in, and the names of its bases."""
    classes: dict[str, tuple[str, list[str]]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                classes[node.name] = (path.relative_to(ROOT).as_posix(), bases)

    def is_exception(name: str) -> bool:
        known = getattr(builtins, name, None)
        if isinstance(known, type):
            return issubclass(known, BaseException)
        return name in classes and any(map(is_exception, classes[name][1]))

    return {name: said for name, said in classes.items() if is_exception(name)}


def described() -> dict[str, tuple[str, str | None]]:
    """What the tree says: the file of each exception, and what it stands below."""
    found: dict[str, tuple[str, str | None]] = {}
    above: list[str] = []
    lines = (errors.__doc__ or "").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.endswith("::"))
    for line in lines[begin + 2 :]:
        depth = (len(line) - len(line.lstrip())) // 4 - 1
        name, *where = line.split()
        del above[depth:]
        if where:  # without a file it is Python's own
            found[name] = (where[0].rstrip(":"), above[-1] if above else None)
        above.append(name)
    return found


def test_the_tree_is_the_real_one() -> None:
    real = {name: (path, bases[0]) for name, (path, bases) in defined().items()}
    assert described() == real


@pytest.mark.parametrize(
    "error",
    [
        errors.ScriptFailed("the script ended with status 3", 3),
        errors.ClusterLost("cluster train is lost.", ["gpu2"], "Run the cell again."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_as_it_was_from_another_process(error: errors.SkyError) -> None:
    came = pickle.loads(pickle.dumps(error))
    assert (type(came), str(came), vars(came)) == (type(error), str(error), vars(error))
