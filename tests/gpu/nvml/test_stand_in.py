"""How GPUs are found, given to ranks and measured, with a stand-in of NVIDIA's library for GPUs.

Nothing here was computed on a GPU: tests/gpu/RESULTS.md says what was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.nvml.stand_in import GIB, GPU, Machine, build

FIRST = GPU("GPU-11111111-aaaa-bbbb-cccc-000000000001", busy=37)
SECOND = GPU("GPU-22222222-aaaa-bbbb-cccc-000000000002", used=5 * GIB, busy=64)

PLACES = "[os.environ.get(each) for each in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')]"


@pytest.fixture(scope="module", autouse=True)
def no_driver() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("the stand-in is for machines without a GPU")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def two_gpus(machine: Machine) -> None:
    machine.show(FIRST, SECOND)


def test_each_rank_has_a_gpu_and_the_panel_shows_it_as_nvidia_smi_does(machine: Machine) -> None:
    found = machine.run(f"""
        cells = start(nodes=1)
        cells.run("import os, jupyter_sky as sky")
        found = {{
            "places": cells.ask("{PLACES}"),
            "numbers": cells.ask("(os.environ['LOCAL_RANK'], sky.instance_info().local_rank)"),
            "seen": seen(cells),
        }}
        cells.cluster.down()
    """)
    assert found["places"] == [["0", "PCI_BUS_ID"], ["1", "PCI_BUS_ID"]]
    # What torch.cuda.set_device(LOCAL_RANK) takes is the only one that each of them sees.
    assert found["numbers"] == [["0", 0], ["0", 1]]
    first, second = found["seen"]
    assert [first["gpu"], second["gpu"]] == [0, 1]
    assert [first["utilisation"], second["utilisation"]] == [0.37, 0.64]
    # Without what the driver keeps for itself, which NVML's first call counts as used.
    assert first["memory"] == [3 * GIB, 140 * GIB]
    assert second["memory"] == [5 * GIB, 140 * GIB]


def test_the_panel_follows_what_a_gpu_does(machine: Machine, tmp_path: Path) -> None:
    machine.show(FIRST)
    busy = GPU(FIRST.uuid, used=9 * GIB, busy=99)
    (tmp_path / "busy").write_text(busy.line())
    found = machine.run(f"""
        cells = start(nodes=1, framework=False)
        before = seen(cells)[0]
        os.replace({str(tmp_path / "busy")!r}, os.environ["NVML_STAND_IN"])
        found = [before, seen(cells, lambda rank: rank["utilisation"] == 0.99)[0]]
        cells.cluster.down()
    """)
    assert [each["memory"][0] for each in found] == [3 * GIB, 9 * GIB]


def test_ranks_that_share_a_gpu_take_gloo_and_nccl_says_that_it_needs_one_each(
    machine: Machine,
) -> None:
    machine.show(FIRST)
    found = machine.run("""
        import jupyter_sky as sky
        from jupyter_sky.errors import SkyError

        cells = start(nodes=1, procs_per_node=2)
        cells.run("import os, torch.distributed as dist")
        found = {
            "backends": cells.ask("dist.get_backend()"),
            "visible": cells.ask("os.environ['CUDA_VISIBLE_DEVICES']"),
            "gpus": [rank["gpu"] for rank in seen(cells)],
        }
        cells.cluster.down()
        plugins = [sky.plugins.torch(backend="nccl")]
        try:
            with sky.ComputePool(procs_per_node=2, plugins=plugins):
                pass
        except SkyError as error:
            found["said"] = str(error)
    """)
    assert found["backends"] == ["gloo", "gloo"]
    assert found["visible"] == ["0", "0"]
    assert found["gpus"] == [0, 0]
    assert (
        'backend="nccl" needs a GPU for each rank, and 2 ranks share 1 GPU here: use '
        'backend="gloo", which takes CUDA tensors too, or fewer ranks.'
    ) in found["said"]


def test_a_gpu_that_the_notebook_was_given_by_its_uuid_is_known_by_name_and_measured(
    machine: Machine,
) -> None:
    code = f"""
        cells = start(nodes=1, framework=False)
        cells.run("import os")
        found = {{
            "places": cells.ask("{PLACES}"),
            "name": cells.cluster.snapshot()["cluster"]["gpu"],
            "seen": seen(cells)[0],
        }}
        cells.cluster.down()
    """
    for given in (SECOND.uuid, "GPU-22222222", f"{SECOND.uuid},-1,0"):
        found = machine.run(code, CUDA_VISIBLE_DEVICES=given)
        assert found["places"] == [[given.split(",")[0], None]]
        assert found["name"] == "NVIDIA H200"
        assert found["seen"]["utilisation"] == 0.64
        assert found["seen"]["memory"] == [5 * GIB, 140 * GIB]


def test_a_part_of_a_gpu_has_memory_and_says_nothing_of_how_busy_it_is(machine: Machine) -> None:
    part = GPU(
        "MIG-33333333-aaaa-bbbb-cccc-000000000003",
        "NVIDIA H200 MIG 3g.71gb",
        total=70 * GIB,
        used=2 * GIB,
        reserved=0,
        busy=None,
    )
    machine.show(FIRST, part)
    found = machine.run(
        """
        cells = start(nodes=1, framework=False)
        found = seen(cells)[0]
        cells.cluster.down()
        """,
        CUDA_VISIBLE_DEVICES=part.uuid,
    )
    assert found["utilisation"] is None
    assert found["memory"] == [2 * GIB, 70 * GIB]


def test_of_unlike_gpus_the_ranks_get_those_that_were_asked_for(machine: Machine) -> None:
    # L40S begins with L4, and GH200 ends with H200.
    machine.show(
        GPU("GPU-1", "NVIDIA L40S"),
        GPU("GPU-2", "NVIDIA GH200 480GB"),
        GPU("GPU-3", "NVIDIA L4"),
        GPU("GPU-4", "NVIDIA GeForce RTX 2080 Ti"),
        GPU("GPU-5", "NVIDIA H200"),
    )
    found = machine.run("""
        found = {}
        for name in ("L4", "H200", "RTX2080Ti"):
            cells = start(nodes=1, framework=False, accelerator=name)
            cells.run("import os")
            found[name] = [
                cells.ask("os.environ['CUDA_VISIBLE_DEVICES']"),
                cells.cluster.snapshot()["cluster"]["gpu"],
            ]
            cells.cluster.down()
    """)
    assert found == {
        "L4": [["2"], "NVIDIA L4"],
        "H200": [["4"], "NVIDIA H200"],
        "RTX2080Ti": [["3"], "NVIDIA GeForce RTX 2080 Ti"],
    }


def test_a_machine_without_a_gpu_has_none_whatever_the_variable_says(machine: Machine) -> None:
    machine.show()
    code = """
        cells = start(nodes=1, framework=False)
        cells.run("import os")
        shown = cells.cluster.snapshot()
        found = [shown["ranks"][0]["gpu"], shown["cluster"]["gpu"]]
        cells.cluster.down()
    """
    assert machine.run(code, CUDA_VISIBLE_DEVICES="0") == [None, None]
    assert machine.run(code, CUDA_VISIBLE_DEVICES="NoDevFiles") == [None, None]
