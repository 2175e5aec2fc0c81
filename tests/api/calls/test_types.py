"""What a type checker knows of calls: mypy has to infer each result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

CODE = """
from collections.abc import Iterator
from typing import assert_type

import jupyter_sky as sky
from jupyter_sky.api.future import CallFuture


@sky.compute
def length(text: str) -> int:
    return len(text)


@sky.compute(timeout=3, retries=2)
def half(x: int) -> float:
    return x / 2


@sky.compute
def steps() -> Iterator[float]:
    yield 1.0


async def use(pool: sky.ComputePool) -> None:
    assert_type(length("a") @ pool, list[int])
    assert_type(length("a") >> pool, int)
    assert_type(length("a") > pool, CallFuture[int])
    assert_type(await (half(1) > pool), float)
    assert_type((length("a") & half(1)) >> pool, tuple[int, float])
    assert_type((length("a") & half(1) & length("b")) >> pool, tuple[int, float, int])
    assert_type(sky.gather(half(1), half(2)) >> pool, tuple[float, ...])
    assert_type(sky.gather(half(1), stream=True) >> pool, Iterator[float])
    assert_type(pool.map(half, range(3)), list[float])
    assert_type(pool.map(len, ["a"]), list[int])
    assert_type(pool.submit(half, 3), CallFuture[float])
    assert_type(pool.submit(len, "a"), CallFuture[int])
    assert_type(steps() >> pool, Iterator[float])
    assert_type(steps() @ pool, Iterator[tuple[int, float]])
    length(1)  # type: ignore[arg-type]
"""


def test_results_have_the_types_of_the_functions(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "code.py").write_text(CODE)
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *cache, str(tmp_path / "code.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
