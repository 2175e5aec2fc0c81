"""Scripts on machines over SSH: what is sent, and where it runs."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import psutil

from jupyter_sky.cluster.inventory import registry
from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook


def test_a_folder_is_sent_once_and_what_changed_again(
    lab: Lab, over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "lib").mkdir(parents=True)
    (project / "lib" / "word.py").write_text("WORD = 'first'")
    (project / "data").write_bytes(bytes(3_000_000))
    (project / "main.py").write_text(
        "import lib.word, os, jupyter_sky as sky\n"
        "print(lib.word.WORD, os.getcwd())\n"
        "sky.log(size=os.path.getsize('data'))\n"
    )
    line = f"--sh --workdir {project} --stdout all"
    block = "\npython main.py; echo $SKYPILOT_NODE_IPS $SKYPILOT_NODE_RANK > written"
    cell = over_ssh.succeed(
        f"%%sky --hosts lab1,lab2 --plugin none --cluster scripts {line}{block}"
    )
    work = [host.folder / "home" / "root" / "jupyter-sky" / "scripts" for host in lab.hosts[:2]]
    assert sorted(cell.stdout.splitlines()) == [
        f"{rank} │ first {folder}" for rank, folder in enumerate(work)
    ]
    assert [(folder / "written").read_text().split()[-1] for folder in work] == ["0", "1"]
    # What a script logs are curves here, by the rank beside it.
    over_ssh.succeed("table = %sky metrics")
    assert over_ssh.value("sorted(zip(table['rank'], table['size']))") == [(0, 3e6), (1, 3e6)]
    sent = "get_ipython().magics_manager.magics['cell']['sky'].__self__._session.find().sent_bytes"
    before = over_ssh.value(sent)
    (project / "lib" / "word.py").write_text("WORD = 'second'")
    cell = over_ssh.succeed(f"%%sky {line}{block}")
    assert "0 │ second" in cell.stdout
    assert "1 │ second" in cell.stdout
    assert over_ssh.value(sent) - before < 100_000
    failed = over_ssh.run(f"%%sky {line}\necho out of memory >&2\nexit $((3 * SKYPILOT_NODE_RANK))")
    assert "exit status 3" in failed.sentence
    assert "lab2" in failed.sentence


def test_a_program_finds_the_files_beside_it_where_its_folder_was_sent(
    over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (tmp_path / "word.txt").write_text("found")
    (source / "train.py").write_text(
        "# %%\n# %%sky --workdir .. --stdout all\nfrom pathlib import Path\n"
        "def main():\n    above = Path(__file__).resolve().parent.parent\n"
        "    print((above / 'word.txt').read_text(), above == Path.cwd())\nmain()\n"
    )
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    settings = f"c.Sky.python = {sys.executable!r}\nc.Sky.plugin = 'none'\n"
    (profile / "ipython_config.py").write_text(settings)
    command = f"{sys.executable} -m jupyter_sky run src/train.py --hosts lab1,lab2"
    cell = over_ssh.succeed(f"!cd {tmp_path} && IPYTHONDIR={profile.parent} {command}")
    assert "0 │ found True" in cell.stdout and "1 │ found True" in cell.stdout


def test_a_terminal_does_not_start_here_what_was_lost_over_ssh(
    over_ssh: LiveNotebook, lab: Lab, tmp_path: Path
) -> None:
    over_ssh.succeed("%sky up --hosts lab1 --plugin none --cluster lost")
    [row] = [row for row in registry.rows() if row.name == "lost"]
    for process in lab.hosts[0].processes(row.id):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends with one that was killed before
            process.kill()
    (tmp_path / "task.yaml").write_text("num_nodes: 1\nrun: touch ran")
    command = f"{sys.executable} -m jupyter_sky launch task.yaml --cluster lost"
    said = over_ssh.succeed(f"!cd {tmp_path} && {command}").stdout
    assert "cluster lost is gone, with what its ranks had" in said
    assert (
        "the last cluster of this name had 1 node of the provider ssh, and local nodes would take "
        "their place: add `--hosts lab1` to start there again, or `--provider local`."
    ) in said
    assert not (tmp_path / "ran").exists()


# Shards a model with FSDP2, and another one with tensor parallelism.
PARALLEL = """
import sys, torch, torch.distributed as dist, settings
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module
)

dist.init_process_group(settings.BACKEND)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

def step(model):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.4f}"

sharded = make()
fully_shard(sharded, mesh=mesh)
split = parallelize_module(make(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
same = {step(make()), step(sharded), step(split)}
part = sharded[0].weight.to_local().shape[0]
words = [len(same), "loss, part", part, "of", dist.get_world_size(), *sys.argv[1:]]
sys.stdout.write(" ".join(map(str, words)) + "\\n")  # at once, for nothing is buffered
# Without it, gloo sometimes ends the process ("terminate called without an active exception"): the
# group is destroyed while its last collective is cleaned up; 5 of 36 times, and 0 of 42 with it.
dist.barrier()
dist.destroy_process_group()
"""


def test_torchrun_between_hosts(over_ssh: LiveNotebook) -> None:
    folder = over_ssh.path.parent / "project"
    folder.mkdir()
    (folder / "settings.py").write_text("BACKEND = 'gloo'")
    (folder / "parallel.py").write_text(PARALLEL)
    over_ssh.succeed("%cd project")
    cell = over_ssh.succeed("%sky torchrun --hosts lab1,lab2 --plugin none parallel.py --lr 3")
    said = sorted(cell.stdout.splitlines())
    assert said == [f"{rank} │ 1 loss, part 4 of 2 --lr 3" for rank in (0, 1)]


# Counts until there is a file, which all hosts see, and prints to both streams.
COUNTS = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    print(f"at {number}", file=sys.stderr if number % 5 == 0 else sys.stdout, flush=True)
    number += 1
    time.sleep(0.05)
print(f"counted {number}", flush=True)
"""


def test_output_goes_on_where_a_link_broke(over_ssh: LiveNotebook, lab: Lab) -> None:
    (over_ssh.path.parent / "counts.py").write_text(COUNTS)
    stop = over_ssh.path.parent / "stop"
    cell = over_ssh.start(f"%sky torchrun --hosts lab1,lab2 --plugin none counts.py {stop}")

    def seen(stream: str, rank: int) -> list[int]:
        return [int(each) for each in re.findall(rf"^{rank} │ at (\d+)$", stream, re.M)]

    def go_on() -> None:
        """Wait until both ranks have printed ten lines more."""
        before = [len(seen(cell.stdout, rank)) for rank in (0, 1)]
        over_ssh.until(
            cell,
            lambda cell: all(len(seen(cell.stdout, rank)) > before[rank] + 10 for rank in (0, 1)),
        )

    try:
        go_on()
        for host in lab.hosts[:2]:
            host.restart_sshd()
        go_on()
        lab.unplug()
        try:
            over_ssh.until(cell, lambda cell: "no connection to " in str(cell.shown))
        finally:
            lab.plug_in()
        over_ssh.until(cell, lambda cell: "again after" in str(cell.shown))
        go_on()
    finally:
        stop.touch()
    assert over_ssh.finish(cell).error is None
    for rank in (0, 1):
        [count] = re.findall(rf"^{rank} │ counted (\d+)$", cell.stdout, re.M)
        numbers = range(int(count))
        assert seen(cell.stdout, rank) == [each for each in numbers if each % 5]
        assert seen(cell.stderr, rank) == [each for each in numbers if each % 5 == 0]
