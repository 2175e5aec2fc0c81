"""The sidebar's form for a new cluster, with what a real Slurm has, from the offer to the card."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.server import schema
from tests.providers.slurm.test_life import job
from tests.providers.slurm.test_provider import queue, without_owner
from tests.server.jupyter import serve
from tests.waiting import until

__all__ = ["job"]

NO_GPU = "main: 2 CPUs, 4 GB, 2 of 2 nodes idle, at most 1:00:00"
GPUS = "main: 2 × A100, 2 CPUs, 4 GB, 2 of 2 nodes idle, at most 1:00:00"


def offers(*words: str) -> dict[str, Any]:
    """Return what the server hands the form."""
    command = [sys.executable, "-P", "-m", "jupyter_sky", "offers", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    schema.check("Offers", found)
    return dict(found)


def test_an_offer_of_a_partition_is_started_and_shown(slurm: Path, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        found = server.sky("offers?nodes=2&provider=slurm").json
        schema.check("Offers", found)
        assert "slurm" in found["providers"]
        assert found["notes"] == []
        lines = {each["description"]: each["line"] for each in found["offers"]}
        # The default partition comes first: the form proposes it, without GPUs.
        assert [*lines][:2] == [NO_GPU, GPUS]
        assert lines[NO_GPU] == "--nodes 2 --provider slurm --partition main"
        assert lines[GPUS] == "--nodes 2 --gpu A100:2 --provider slurm --partition main"
        [other] = [line for text, line in lines.items() if text.startswith("low: 2 × A100")]
        kernel = server.open("form.ipynb")
        kernel.run(f"%sky up {other} --cluster chosen")
        entry = server.until("chosen", lambda entry: entry["state"] == "ready")
        command = ["squeue", "--noheader", "--format=%P %D %b"]
        jobs = subprocess.run(command, capture_output=True, text=True).stdout.split()
        assert server.act(entry, "down").status == 200
        assert jobs[:2] == ["low", "2"]
        assert jobs[2].endswith("gpu:a100:2")
        assert (entry["provider"], entry["nodes"], entry["gpu"]) == ("slurm", 2, "A100")
        assert (entry["price"], entry["unit"]) == (None, "GPU hours")
        assert entry["cost"] > 0
        until(lambda: not queue())
    assert not without_owner()


def test_what_no_partition_has_is_said(slurm: Path) -> None:
    found = offers("--nodes=1", "--provider=slurm", "--gpu=A100:2")
    assert {each["gpu"] for each in found["offers"]} == {"A100:2"}
    for words, lacks in (
        (["--nodes=3"], "3 equal nodes:"),
        (["--nodes=1", "--gpu=H100"], "1 equal node with H100:"),
    ):
        found = offers("--provider=slurm", *words)
        assert found["offers"] == []
        [note] = found["notes"]
        assert note.startswith(f"slurm: no partition has {lacks}")
        assert "slurm" in found["providers"]


def test_where_slurm_is_not_nobody_is_offered_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    found = offers("--nodes=1")
    assert "slurm" not in found["providers"]
    assert "slurm" not in str(found["notes"])


def test_in_a_job_its_own_nodes_come_first(job: str) -> None:
    first, second, *_ = offers("--nodes=2", "--provider=slurm")["offers"]
    assert first["line"] == "--nodes 2 --provider slurm"
    assert first["description"] == f"job {job}, in which this notebook runs: 2 nodes, 2 × A100 each"
    assert first["gpu"] == "A100:2"
    assert second["line"] == "--nodes 2 --provider slurm --partition main"
    # Nor has it as many nodes as this.
    assert not offers("--nodes=3", "--provider=slurm")["offers"]
