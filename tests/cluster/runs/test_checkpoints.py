"""Checkpoints that ranks save together, and load on another number of ranks."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import RankLost, RemoteError
from jupyter_sky.providers.local import Local
from tests.cluster.cells import Cells, trains
from tests.cluster.control.test_recovery import kill_agent
from tests.cluster.runs.test_sharded import FSDP1, FSDP2, NET, TENSOR_PARALLEL
from tests.cluster.runs.test_stop import stop_at_first_line
from tests.installed import on_first_use
from tests.lab.buckets import serving
from tests.node.volumes.conftest import Keeper, forwarding, keeping
from tests.waiting import until

torch = on_first_use("torch")

WAYS = {"FSDP2": FSDP2, "FSDP1": FSDP1.format(use=""), "tensor-parallel": TENSOR_PARALLEL}
DDP = "model = nn.parallel.DistributedDataParallel(made())"


@pytest.fixture
def cells(cells: Cells, tmp_path: Path) -> Cells:
    cells.run(f"{NET}\nimport jupyter_sky as sky\npath = {str(tmp_path / 'run')!r}")
    return cells


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait", [True, False])
def test_ranks_go_on_where_they_were(cells: Cells, way: str, wait: bool) -> None:
    """With the optimizer's state: the next steps are the same as without a break."""
    straight = f"{WAYS[way]}\noptimizer = step(model)\n"
    broken = f"""{straight}
saving = sky.save(path, wait={wait}, model=model, optimizer=optimizer, step=3)
step_on(model, optimizer)
saving.wait()
straight = model
{WAYS[way]}
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
others = sky.load(path, model=model, optimizer=optimizer)
step_on(model, optimizer)
"""
    cells.run("""
def step_on(model, optimizer):
    torch.manual_seed(2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
""")
    found = cells.run(broken, values={0: ["straight:state", "model:state", "others"]})[0]
    assert found["others"] == {"step": 3}
    for name, value in found["straight:state"].items():
        if name != "seen":  # which counts the calls
            torch.testing.assert_close(found["model:state"][name], value)


@pytest.mark.parametrize("way", [FSDP2, DDP], ids=["FSDP2", "DDP"])
@pytest.mark.parametrize("wait", [True, False])
def test_other_values_are_those_of_rank_0(cells: Cells, way: str, wait: bool) -> None:
    code = f"""{way}
history = [0.5] if rank == 0 else []
sky.save(path, wait={wait}, model=model, history=history, rank=rank).wait()
others = sky.load(path, model=model)
"""
    found = cells.run(code, values={rank: ["others"] for rank in range(4)})
    expected = {"others": {"history": [0.5], "rank": 0}}
    assert [found[rank] for rank in range(4)] == [expected] * 4


def test_an_optimizer_that_evaluates_the_model_itself_goes_on_where_it_was(cells: Cells) -> None:
    cells.run("""
def prepared():
    model = nn.parallel.DistributedDataParallel(nn.Linear(10, 1))
    return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

def step_on(model, optimizer):
    def loss():
        optimizer.zero_grad()
        loss = (model(torch.eye(10)) - torch.arange(10.0)[:, None]).square().mean()
        loss.backward()
        return loss
    optimizer.step(loss)
    return [each.tolist() for each in model.parameters()]

model, optimizer = prepared()
step_on(model, optimizer)
sky.save(path, model=model, optimizer=optimizer)
straight = step_on(model, optimizer)
model, optimizer = prepared()
sky.load(path, model=model, optimizer=optimizer)
""")
    assert cells.ask("step_on(model, optimizer) == straight") == [True] * 4


def test_it_is_loaded_on_another_number_of_ranks(cells: Cells, tmp_path: Path) -> None:
    """What four ranks have saved, one loads: this process, which is in no group."""
    code = f"{FSDP2}\noptimizer = step(model)\nsky.save(path, model=model, optimizer=optimizer)"
    expected = cells.run(code, values={0: ["model"]})[0]["model"]
    model = copy.deepcopy(expected).requires_grad_(True)
    with torch.no_grad():
        model.up.weight.zero_()
    optimizer = torch.optim.Adam(model.parameters())
    sky.load(tmp_path / "run", model=model, optimizer=optimizer)
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert optimizer.state[model.up.weight]["exp_avg"].shape == (1030, 10)
    # And back: what one process has saved, four ranks load, wrapped in another way.
    sky.save(tmp_path / "run", model=model, step=7)
    found = cells.run(
        f"{DDP}\nothers = sky.load(path, model=model)", values={0: ["model:state", "others"]}
    )[0]
    assert found["others"] == {"step": 7}
    assert torch.equal(found["model:state"]["up.weight"], expected.up.weight)


def test_each_rank_writes_its_own_parts(cells: Cells, tmp_path: Path) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model)")
    [save] = [path for path in (tmp_path / "run").iterdir() if path.is_dir()]
    parts = sorted(path.name for path in save.glob("*.distcp"))
    assert parts == [f"__{rank}_0.distcp" for rank in range(4)]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What ranks need to know of a bucket of moto's server, which is spoken to over HTTP."""
    pytest.importorskip("s3fs")  # its driver wants another botocore than boto3 does, at times
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    try:
        made = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **secrets}
        client = boto3.client(
            "s3",
            endpoint_url=made["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket="runs")
        yield made
    finally:
        running.stop()


def test_a_bucket_of_s3_keeps_it(cells: Cells, bucket: dict[str, str]) -> None:
    place = "s3://runs/first"
    cells.run(f"import os\nos.environ.update({bucket!r})\n{FSDP2}\noptimizer = step(model)")
    for number in (1, 2):  # the second one takes the place of the first
        values = f"model=model, optimizer=optimizer, step={number}"
        cells.run(f"sky.save({place!r}, wait={number == 1}, {values}).wait()")
    load = f"""
saved = {{name: value.full_tensor() for name, value in model.state_dict().items()
         if hasattr(value, "full_tensor")}}
{FSDP2}
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
others = sky.load({place!r}, model=model, optimizer=optimizer)
same = all(torch.equal(model.state_dict()[name].full_tensor(), saved[name]) for name in saved)
"""
    cells.run(load)
    assert cells.ask("(same, others, len(saved) > 3)") == [(True, {"step": 2}, True)] * 4
    cells.run("import s3fs")
    [files] = cells.ask(f"s3fs.S3FileSystem().find({place!r})", ranks=(0,))
    parts = [f"__{rank}_0.distcp" for rank in range(4)]  # of one save: the former one is gone
    names = sorted(each.rpartition("/")[2] for each in files)
    assert names == sorted([".metadata", "begun", "checkpoint.json", *parts])
    with pytest.raises(RemoteError, match="there is no checkpoint at s3://runs/none"):
        cells.run("sky.load('s3://runs/none', model=model)")
    missing = "nothing can be saved at s3://missing/run: The specified bucket does not exist"
    with pytest.raises(RemoteError, match=missing):
        cells.run("sky.save('s3://missing/run', model=model)")
    cells.run(f"for name in {list(bucket)}: os.environ.pop(name)")


@pytest.fixture
def disks(cells: Cells, tmp_path: Path) -> Iterator[Callable[[Sequence[object]], None]]:
    """Let each rank have a disk of its own, as if it were another node; by name."""
    cells.run("import os\nhome = os.environ['HOME']")

    def choose(names: Sequence[object]) -> None:
        folders = [str(tmp_path / str(name)) for name in names]
        cells.run(f"os.environ['HOME'] = {folders}[rank]")

    yield choose
    cells.run("import os\nos.environ['HOME'] = globals().get('home', os.environ['HOME'])")


def parts_on(disk: Path) -> list[str]:
    """What the disk of a node has of the one save that is there."""
    [save] = [path for path in (disk / "run").iterdir() if path.is_dir()]
    return sorted(path.name for path in save.iterdir() if path.name not in ("begun", "joined"))


def test_each_node_keeps_its_parts_on_its_own_disk(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    disks(range(4))
    cells.run(f"{FSDP2}\noptimizer = step(model)")
    for number in (1, 2):  # the second one takes the place of the first
        wait = number == 1
        code = f"sky.save('~/run', wait={wait}, model=model, optimizer=optimizer, step={number})"
        cells.run(f"{code}.wait()")
    assert [parts_on(tmp_path / str(rank)) for rank in range(4)] == [
        [".metadata", "__0_0.distcp"],
        *([f"__{rank}_0.distcp"] for rank in (1, 2, 3)),
    ]
    load = f"""
saved = {{name: value.full_tensor() for name, value in model.state_dict().items()
         if hasattr(value, "full_tensor")}}
{FSDP2}
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
others = sky.load('~/run', model=model, optimizer=optimizer)
same = all(torch.equal(model.state_dict()[name].full_tensor(), saved[name]) for name in saved)
"""
    for order in ([0, 1, 2, 3], [2, 3, 0, 1]):  # where they were, and elsewhere
        disks(order)
        cells.run(load)
        assert cells.ask("(same, others, len(saved) > 3)") == [(True, {"step": 2}, True)] * 4
    disks([0, 1, 2, "empty"])
    with pytest.raises(RemoteError, match="and what rank 3 wrote is on no node of this cluster"):
        cells.run(load)
    disks([0, 0, 1, 2])
    with pytest.raises(RemoteError, match="and what rank 3 wrote is on no node of this cluster"):
        cells.run(load)


def test_a_node_that_is_lost_before_its_part_is_in_the_bucket_leaves_the_former_checkpoint(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    with serving() as bucket, ExitStack() as nodes:
        folders = [tmp_path / str(rank) for rank in range(4)]
        for folder in folders:
            folder.mkdir()
        keepers = [
            nodes.enter_context(keeping(folder / "data", bucket, folder / "keeper"))
            for folder in folders
        ]
        for keeper in keepers:
            assert keeper.mount("s3://photos/runs") == ""
        disks(range(4))
        cells.run(f"{FSDP2}\nsky.save('~/data/run', model=model, step=1)")
        keepers[2].process.kill()
        keepers[2].process.wait()
        with pytest.raises(RemoteError, match=r"was not saved: .* is gone.* \(rank 2\)"):
            cells.run("sky.save('~/data/run', model=model, step=2)")
        elsewhere = nodes.enter_context(keeping(tmp_path / "data", bucket, tmp_path / "again"))
        assert elsewhere.mount("s3://photos/runs") == ""
        assert sky.load(elsewhere.data / "run") == {"step": 1}
        save = json.loads((elsewhere.data / "run" / "checkpoint.json").read_text())["save"]
        assert len([*(elsewhere.data / "run" / save).glob("*.distcp")]) == 4


def test_a_checkpoint_that_one_node_cannot_upload_is_loaded_only_where_it_is_whole(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    is_lost = threading.Event()
    with (
        serving() as bucket,
        forwarding(bucket.address, lambda size, is_back: not is_lost.is_set()) as breaking,
        ExitStack() as nodes,
    ):

        def mount(name: object, address: str = "") -> Keeper:
            folder = tmp_path / str(name)
            folder.mkdir(exist_ok=True)
            keeper = nodes.enter_context(keeping(folder / "data", bucket, folder / "keeper"))
            assert keeper.mount("s3://photos/runs", address) == ""
            return keeper

        keepers = [mount(rank, breaking if rank == 2 else "") for rank in range(4)]
        disks(range(4))
        cells.run(f"{FSDP2}\nsky.save('~/data/run', model=model, step=1)")
        is_lost.set()
        cells.run("sky.save('~/data/run', model=model, step=2)")
        assert "not in its bucket yet: not written to s3://photos/runs" in cells.text("stderr")
        load = "loaded = sky.load('~/data/run', model=model)"
        cells.run(load)
        assert cells.ask("loaded") == [{"step": 2}] * 4
        for keeper in keepers:
            keeper.ask("write_back")
        is_lost.clear()
        elsewhere = mount("elsewhere")
        assert sky.load(elsewhere.data / "run") == {"step": 1}
        mount("new")
        disks([0, 1, "new", 3])
        cells.run(load)
        assert "the one before it is loaded" in cells.text("stderr")
        assert cells.ask("loaded") == [{"step": 1}] * 4
        disks(range(4))
        for keeper in (*reversed(keepers), keepers[0]):
            keeper.ask("write_back")
        assert elsewhere.ask("refresh", path=str(elsewhere.data))["trouble"] == ""
        assert sky.load(elsewhere.data / "run") == {"step": 2}


def test_a_save_waits_longer_than_the_limit_of_torch_for_an_upload(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    is_slow = threading.Event()

    def goes_on(size: int, is_back: bool) -> bool:
        if is_back and is_slow.is_set():
            is_slow.clear()
            time.sleep(2 * limit)  # what is tested is that no such time is too long
        return True

    limit = 2
    with (
        serving() as bucket,
        forwarding(bucket.address, goes_on) as slow,
        ExitStack() as nodes,
    ):
        for rank in range(4):
            folder = tmp_path / str(rank)
            folder.mkdir()
            keeper = nodes.enter_context(keeping(folder / "data", bucket, folder / "keeper"))
            assert keeper.mount("s3://photos/runs", slow if rank == 2 else "") == ""
        disks(range(4))
        cells.run(f"{FSDP2}\nsky.save('~/data/run', model=model, step=1)")
        is_slow.set()
        cells.run(f"""
from datetime import timedelta
from torch.distributed import distributed_c10d as c10d
c10d._set_pg_timeout(timedelta(seconds={limit}))
try:
    sky.save('~/data/run', model=model, step=2)
finally:
    c10d._set_pg_timeout(c10d._get_default_timeout("gloo"))
""")
        assert not is_slow.is_set()
        cells.run("loaded = sky.load('~/data/run', model=model)")
        assert cells.ask("loaded") == [{"step": 2}] * 4


FULL = """
import resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20 if rank == 1 else limits[0], limits[1]))
try:
    sky.load('~/run', model=model)
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""


def test_a_node_that_cannot_read_or_write_a_part_is_named_and_nobody_waits(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    large = "model = nn.parallel.DistributedDataParallel(nn.Linear(3000, 3000))"  # many chunks
    disks(range(4))
    cells.run(f"{large}\nsky.save('~/run', model=model, step=1)")
    with pytest.raises(RemoteError, match=r"File too large \(rank 1\)"):
        cells.run(FULL)
    # With the group that they had.
    assert cells.ask("sky.load('~/run', model=model)") == [{"step": 1}] * 4
    [part] = [path for path in tmp_path.glob("*/run/*/*.distcp") if path.stat().st_size > 2**24]
    part.rename(part.with_suffix(".kept"))
    part.symlink_to("/proc/self/mem")  # can be opened, and not be read
    with pytest.raises(RemoteError, match="Input/output error"):
        cells.run("sky.load('~/run', model=model)")
    part.with_suffix(".kept").rename(part)
    assert cells.ask("sky.load('~/run', model=model)") == [{"step": 1}] * 4


def test_a_disk_that_cannot_be_written_is_named(
    cells: Cells, disks: Callable[[Sequence[object]], None], tmp_path: Path
) -> None:
    disks([0, 1, "file", 3])
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match=r"nothing can be saved at ~/run on rank 2: .*Not a dir"):
        cells.run(f"{FSDP2}\nsky.save('~/run', model=model)")
    assert not list((tmp_path / "0" / "run").iterdir())


def test_all_ranks_have_to_save(cells: Cells) -> None:
    cells.run(FSDP2)
    with pytest.raises(RemoteError) as caught:
        cells.run("if rank == 1:\n    sky.save(path, model=model)")
    said = "sky.save takes all ranks together, and ranks 0, 2-3 ended the cell without it: call it"
    assert str(caught.value) == f"{said} on every rank, not below `if rank == 0:`."
    with pytest.raises(RemoteError, match="sky.load takes all 4 ranks .* this runs on ranks 0-1"):
        cells.run("sky.load(path, model=model)", ranks=(0, 1))
    cells.run("sky.save(path, model=model, step=1)")
    assert cells.ask("sky.load(path)") == [{"step": 1}] * 4


DYING = """
import os, torch.distributed.checkpoint.filesystem as filesystem
write = filesystem.FileSystemWriter.write_data

def write_and_die(self, plan, planner):
    write(self, plan, planner).wait()
    os.kill(os.getpid(), 9)

if rank == 2:
    filesystem.FileSystemWriter.write_data = write_and_die
"""

# Before the others have what it would tell them of its part.
DYING_EARLY = """
import os, torch.distributed.checkpoint.filesystem as filesystem
if rank == 2:
    plan = lambda *args: os.kill(os.getpid(), 9)
    filesystem.FileSystemWriter.prepare_local_plan = plan
    filesystem.FileSystemReader.read_data = plan
"""


@pytest.mark.parametrize(("call", "victim"), [("save", 2), ("load", 0)])
def test_a_rank_that_is_killed_while_others_wait_leaves_the_checkpoint(
    cells: Cells, call: str, victim: int
) -> None:
    dying = DYING_EARLY.replace("rank == 2", f"rank == {victim}")
    prepare = f"{NET}\nimport os, jupyter_sky as sky\nrank = int(os.environ['RANK'])"
    path = cells.ask("path")[0]
    cells.run(f"{FSDP2}\nsky.save(path, model=model, step=1)")
    step = {"save": ", step=2", "load": ""}[call]
    with pytest.raises(RemoteError, match=f"rank {victim} is lost"):
        cells.run(f"{dying}\nsky.{call}(path, model=model{step})")
    cells.run(f"{prepare}\npath = {path!r}\n{FSDP2}")
    assert cells.ask("sky.load(path, model=model)") == [{"step": 1}] * 4
    cells.run("sky.save(path, model=model, step=3)")
    assert cells.ask("sky.load(path)") == [{"step": 3}] * 4


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("where", ["shared", "own disks"])
def test_a_rank_that_is_killed_while_it_saves_leaves_the_former_checkpoint(
    cells: Cells,
    disks: Callable[[Sequence[object]], None],
    tmp_path: Path,
    where: str,
    when: str,
) -> None:
    dying = DYING_EARLY if when == "early" else DYING
    names: Sequence[object] = range(4) if where == "own disks" else [0] * 4
    disks(names)
    cells.run(f"{FSDP2}\nsky.save('~/run', model=model, step=1)")
    with pytest.raises(RemoteError, match="rank 2 is lost"):
        cells.run(f"{dying}\nsky.save('~/run', model=model, step=2)")
    cells.run(f"{NET}\nimport os, jupyter_sky as sky\nrank = int(os.environ['RANK'])")
    disks(names)
    cells.run(FSDP2)
    assert cells.ask("sky.load('~/run', model=model)") == [{"step": 1}] * 4
    cells.run("sky.save('~/run', model=model, step=3)")
    assert cells.ask("sky.load('~/run', model=model)") == [{"step": 3}] * 4
    for name in set(names):
        assert parts_on(tmp_path / str(name))  # of one save: those that were cut off are gone


def test_a_save_that_is_stopped_leaves_the_former_one(cells: Cells, tmp_path: Path) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model, step=1)")
    former = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    code = "print('here')\nif rank == 2: time.sleep(600)\nsky.save(path, model=model, step=2)"
    stop_at_first_line(cells.start(code))
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text()) == former
    assert cells.ask("sky.load(path, model=model)") == [{"step": 1}] * 4
    cells.run("sky.save(path, model=model, step=3)")
    assert len(list((tmp_path / "run").iterdir())) == 2  # nothing of the one that was stopped
    assert cells.ask("sky.load(path)") == [{"step": 3}] * 4


def test_what_is_wrong_on_one_rank_is_said_with_the_rank(cells: Cells) -> None:
    cells.run(f"{FSDP2}\nsky.save(path, model=model, step=1)")
    with pytest.raises(RemoteError, match=r"was not loaded: .* model\.0\.\w+ \(rank"):
        cells.run("other = nn.Sequential(model)\nsky.load(path, model=other)")


STUCK = """
import pathlib, time, torch.distributed.checkpoint.filesystem as filesystem

def stuck(*args):
    pathlib.Path(path + '-stuck').touch()
    time.sleep(600)

if rank == 1:
    filesystem.FileSystemWriter.finish = filesystem.FileSystemWriter.write_data = stuck
    filesystem.FileSystemReader.read_data = stuck
"""


@pytest.mark.parametrize(("call", "replace"), [("save", True), ("load", True), ("save", False)])
def test_a_node_that_is_killed_leaves_the_checkpoint_and_nobody_waits(
    new, tmp_path: Path, call: str, replace: bool
) -> None:
    place = tmp_path / "run"
    prepare = f"{NET}\nimport os, jupyter_sky as sky\nrank = int(os.environ['RANK'])"
    prepare += f"\npath = {str(place)!r}\n{DDP}"
    cells = new(nodes=2, provider=Local(machines=2), framework=trains(), replace=replace)
    cells.run(f"{prepare}\nsky.save(path, model=model, step=1)")
    step = {"save": ", step=2", "load": ""}[call]
    run = cells.start(f"{STUCK}\nsky.{call}(path, model=model{step})")
    until((tmp_path / "run-stuck").exists)
    kill_agent(cells, 1)
    advice = "" if replace else ".*`%sky restart`.*`--replace`"
    with pytest.raises((RankLost, sky.ClusterLost), match=f"the agent of .* 1 ended{advice}"):
        run.follow(timeout=200)
        run.values()
    assert sky.load(place) == {"step": 1}  # also where the cluster is lost
    if replace:
        cells.run(prepare)
        assert cells.ask("sky.load(path, model=model)") == [{"step": 1}] * 2
        cells.run("sky.save(path, model=model, step=3)")
        assert len(list(place.iterdir())) == 2  # nothing of the one that was cut off
