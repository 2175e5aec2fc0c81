"""The guide to one's own machines runs, on hosts of the lab.

``python -m tests.providers.ssh.test_guide`` makes the outputs that it is saved with.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.lab import Lab
from tests.paths import ROOT
from tests.waiting import PATIENCE

GUIDE = ROOT / "notebooks" / "your-own-machines.ipynb"


def outputs(notebook: nbformat.NotebookNode) -> str:
    """Return what all cells show, as text."""
    parts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error", output
            parts.append(output.get("text", "") + output.get("data", {}).get("text/plain", ""))
    return "\n".join(parts)


def run(path: Path, client: Path, lab: Lab) -> nbformat.NotebookNode:
    """Run a notebook as a user whose configuration calls the hosts as the guide does."""
    config = "".join(
        f"Host gpu{number}\n  HostName {host.address}\n"
        for number, host in enumerate(lab.hosts[:3], 1)
    )
    (client / "config").write_text(f"{config}Host *\n  User root\n")
    profile = client.parent / ".ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    settings = f"c = get_config()\nc.Sky.python = {sys.executable!r}\n"
    (profile / "ipython_config.py").write_text(settings)
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    # Without it, ipykernel warns that the way to the kernel is not encrypted.
    config = Config({"KernelManager": {"transport_encryption": "auto"}})
    NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        config=config,
    ).execute()
    notebook.metadata = metadata
    return notebook


@pytest.fixture
def fresh(lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(client.parent / ".ipython"))
    yield outputs(run(GUIDE, client, lab))


def test_it_shows_what_it_says(fresh: str) -> None:
    assert "3 ssh nodes, 4 ranks on CPU, group formed" in fresh
    assert "4 ranks have met" in fresh
    assert re.search(r"\(1, '\w+', '0'\), \(2, '\w+', '1'\)", fresh)
    assert "step 2" in fresh
    assert "ended; nothing is left running" in fresh


def test_its_saved_outputs_are_those_of_a_run() -> None:
    saved = outputs(nbformat.read(GUIDE, as_version=4))
    assert "3 ssh nodes, 4 ranks on CPU, group formed" in saved
    assert "ended; nothing is left running" in saved


def main() -> None:
    """Run the guide and save it with its outputs."""
    lab = Lab.start(3)
    try:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            shutil.copytree(lab.home, home)
            os.environ.pop("SSH_AUTH_SOCK", None)
            os.environ.update(
                HOME=str(home),
                JUPYTER_SKY_HOME=str(home / "jupyter_sky"),
                PYTHONPATH=str(ROOT),
                IPYTHONDIR=str(home / ".ipython"),
            )
            notebook = run(GUIDE, home / ".ssh", lab)
        text = nbformat.writes(notebook)
        for number, host in enumerate(lab.hosts, 1):
            # The guide's reader has hosts of these names; those of the lab have names of their own.
            text = text.replace(f"'{host.name}'", f"'gpu{number}'")
        GUIDE.write_text(f"{text}\n")
    finally:
        lab.stop()


if __name__ == "__main__":
    main()
