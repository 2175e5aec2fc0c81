"""Slurm as sites have it: commands that print more than asked for, old versions, names of GPUs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.slurm.partitions import accounts, gpus_of, node_kinds
from jupyter_sky.transport import event_loop
from tests.cluster.cells import Cells
from tests.providers.slurm.test_provider import start

Wrap = Callable[[str, str], None]


@pytest.fixture
def wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrap:
    """Puts a script in the place of a command; ``$real`` is the command in it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(command: str, script: str) -> None:
        real = shutil.which(command, path=os.environ["PATH"].partition(":")[2])
        (tmp_path / command).write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
        (tmp_path / command).chmod(0o755)

    return write


def test_what_a_site_lets_its_commands_print_besides_is_passed_over(
    slurm: Path, wrap: Wrap
) -> None:
    kinds = event_loop.wait(node_kinds(login_node(None)))
    for command in ("squeue", "sinfo", "sacctmgr"):
        wrap(command, 'echo "*** Maintenance on Monday: see our wiki ***"; exec $real "$@"')
    assert event_loop.wait(node_kinds(login_node(None))) == kinds
    assert event_loop.wait(accounts(login_node(None))) == []
    cluster = start("noted", nodes=2)
    try:
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n2"]
        cluster.scale(1)
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1"]
    finally:
        cluster.down()


def test_a_slurm_that_is_too_old_is_said_to_be(slurm: Path, wrap: Wrap) -> None:
    wrap("sbatch", "echo slurm 19.05.3-2")
    with pytest.raises(UsageError, match=r"^Slurm 19\.05 is too old: .* since 20\.11\.$"):
        start("old")
    wrap("sbatch", 'test "$1" = --version && exec echo slurm-wlm 20.11.4; exec $real "$@"')
    start("young").down()


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ("gpu:1g.5gb:7", ("1g.5gb", 7)),
        ("gpu:a100_3g.20gb:2(S:0)", ("a100_3g.20gb", 2)),
        ("gpu:4(S:0-1),lscratch:100", (None, 4)),
        ("shard:8,gpu:rtx_a6000:4", ("rtx_a6000", 4)),
        ("gres/gpu:a100:2", ("a100", 2)),
        ("(null)", (None, 0)),
    ],
)
def test_names_of_gpus(resources: str, gpus: tuple[str | None, int]) -> None:
    assert gpus_of(resources) == gpus


@pytest.mark.parametrize("seconds", ["0", "2"])
def test_a_job_that_ends_as_its_nodes_are_there_is_said_in_a_sentence(
    slurm: Path, wrap: Wrap, seconds: str
) -> None:
    """As one that is preempted or cancelled: what leads to its nodes is then gone or going."""
    end = f"scancel --me; sleep {seconds}"
    wrap("srun", f'[[ "$*" == *node.bridge* ]] && {{ {end}; }}; exec $real "$@"')
    with pytest.raises(SkyError, match=r"^n1 (was lost as it started|has started, and cannot be)"):
        start("brief")
    assert registry.find("brief") is None
