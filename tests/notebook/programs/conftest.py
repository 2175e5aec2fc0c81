"""Notebooks as files, and programs that are run as a user does in a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

SETTINGS = "c = get_config()\nc.Sky.plugin = 'none'\n"


def write_notebook(path: Path, *cells: str, tags: Sequence[str] = ()) -> Path:
    """Write a notebook; its last cell has the tags."""
    made: list[dict[str, Any]] = [{"cell_type": "markdown", "source": "# Text", "metadata": {}}]
    for cell in cells:
        made.append({"cell_type": "code", "source": cell.splitlines(True), "metadata": {}})
    made[-1]["metadata"] = {"tags": list(tags)}
    text = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text))
    return path


@dataclass
class Terminal:
    """Where a user types ``jupyter sky``; clusters of it have no framework."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def sky(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Type a command, and wait for its end."""
        return self.python("-m", "jupyter_sky", *words)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python."""
        return subprocess.run([sys.executable, *words], capture_output=True, **self._how)

    def begin(self, *words: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Type a command, perhaps under another, whose output is read as it comes."""
        command = [*under, sys.executable, "-m", "jupyter_sky", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **self.env}
        return {"cwd": self.folder, "env": env, "text": True, "stdin": subprocess.DEVNULL}


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(SETTINGS)
    return Terminal(tmp_path, {"IPYTHONDIR": str(profile.parent)})
