"""`make test-gpu` where there is no GPU, and the file that keeps what it has shown last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import figures
from tests.paths import ROOT


def test_without_a_gpu_it_ends_with_one_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.gpu"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    said = "make test-gpu: no NVIDIA GPU here: there is no `nvidia-smi`.\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", said)


def test_a_run_is_kept_with_its_machine_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "RESULTS.md")
    fast = figures.Check("it is fast", "passed", ["3 s", "2 GiB"])
    divided = figures.Check("parts", "skipped: no GPU of this machine is divided")
    figures.write("1 × NVIDIA H200", "2026-01-01", "abc", 12.3, [fast, divided])
    kept = (tmp_path / "RESULTS.md").read_text()
    assert "- machine: 1 × NVIDIA H200\n- date: 2026-01-01\n- commit: abc\n" in kept
    assert "1 passed, 0 failed, 1 skipped, in 12 s" in kept
    assert "| it is fast | passed " in kept
    assert "| 3 s; 2 GiB |" in kept
