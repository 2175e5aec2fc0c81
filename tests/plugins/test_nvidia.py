"""Plugins for NVIDIA GPUs, with the recorded output of NVIDIA's commands in place of a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import SkyError, UsageError

# An H100 in two parts, as `nvidia-smi -L` of driver 550 lists it.
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-6e6a4f5c-3a7e-4bde-a94e-1df1f0d7a0a1)
  MIG 3g.40gb     Device  0: (UUID: MIG-2b5c0a8e-52f3-5e0c-9a39-5f1a0a0f7c11)
  MIG 3g.40gb     Device  1: (UUID: MIG-7f0d9c36-0f6e-5a43-8d3b-0f6a5d9f2e22)
"""
PARTS = ["MIG-2b5c0a8e-52f3-5e0c-9a39-5f1a0a0f7c11", "MIG-7f0d9c36-0f6e-5a43-8d3b-0f6a5d9f2e22"]

SMI = """#!/bin/sh
echo "nvidia-smi $*" >> {calls}
case "$*" in
-L) [ -f {divided} ] && cat {divided} || head -1 {listed} ;;
"mig -cgi "*) cp {listed} {divided} ;;
esac
"""
MPS = """#!/bin/sh
echo "$0 $* $CUDA_MPS_PIPE_DIRECTORY" | sed 's|.*/nvidia-cuda|nvidia-cuda|' >> {calls}
[ "$1" = -d ] && touch {divided} && exit
[ -f {divided} ]
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where NVIDIA's commands write down how they are called."""
    files = {name: tmp_path / name for name in ("calls", "divided", "listed")}
    files["listed"].write_text(LISTED)
    for name, script in (("nvidia-smi", SMI), ("nvidia-cuda-mps-control", MPS)):
        (tmp_path / name).write_text(script.format(**files))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return files["calls"]


@sky.compute
def variables(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def test_each_rank_has_a_part_of_the_gpu(calls: Path) -> None:
    for _ in range(2):  # what is divided already is not divided again
        with sky.ComputePool(procs_per_node=2, plugins=[sky.plugins.mig("3g.40gb")]) as pool:
            assert variables("CUDA_VISIBLE_DEVICES") @ pool == [[part] for part in PARTS]
    asked = [line for line in calls.read_text().splitlines() if line != "nvidia-smi -L"]
    assert asked == [
        "nvidia-smi -mig 1",
        "nvidia-smi mig -cgi 3g.40gb,3g.40gb -C",
        "nvidia-smi -mig 1",
    ]


def test_more_ranks_than_parts_is_said(calls: Path) -> None:
    plugins = [sky.plugins.mig("3g.40gb")]
    with (
        pytest.raises(SkyError, match="2 MIG devices for 3 ranks: see what `nvidia-smi -L` lists"),
        sky.ComputePool(procs_per_node=3, plugins=plugins),
    ):
        pass


def test_mps_is_started_once_in_a_folder_of_the_users_own(calls: Path) -> None:
    folder = f"/tmp/nvidia-mps-{os.getuid()}"
    plugin = sky.plugins.mps(active_thread_percentage=50, pinned_memory_limit="0=2G")
    names = ("PIPE_DIRECTORY", "ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT")
    for _ in range(2):
        with sky.ComputePool(plugins=[plugin]) as pool:
            [seen] = variables(*(f"CUDA_MPS_{name}" for name in names)) @ pool
            assert seen == [folder, "50", "0=2G"]
    asked = calls.read_text().splitlines()
    assert asked.count(f"nvidia-cuda-mps-control -d {folder}") == 1
    assert Path(folder).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sky.plugins.mig("half"), 'type one like "3g.40gb"'),
        (lambda: sky.plugins.mps(active_thread_percentage=0), "a number from 1 to 100"),
        (lambda: sky.plugins.mps(pinned_memory_limit="2G"), 'like "0=2G"'),
        (lambda: sky.plugins.cuml("12"), 'like cuda="cu12"'),
    ],
)
def test_wrong_arguments_are_refused(make, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_mig_needs_to_know_how_many_ranks_share_a_node() -> None:
    with (
        pytest.raises(UsageError, match="needs procs_per_node"),
        sky.ComputePool(plugins=[sky.plugins.mig("3g.40gb")]),
    ):
        pass


def test_cuml_comes_from_its_own_index_and_its_absence_is_one_sentence() -> None:
    from jupyter_sky.api.plugin import transform_image

    image = transform_image([sky.plugins.cuml()], sky.Image(), None)
    assert image.pip == ("cuml-cu12",)
    assert image.pip_indexes[0].packages == ("cuml-cu12",)
    with (
        pytest.raises(SkyError, match="cuml is not installed on this node: pip install cuml-cu12"),
        sky.ComputePool(plugins=[sky.plugins.cuml()]),
    ):
        pass
