"""Data in buckets, as files of the nodes of this computer: read, cached, written back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell

import jupyter_sky as sky
from jupyter_sky import paths
from jupyter_sky.cluster.additions.mounts import Mounts
from jupyter_sky.cluster.errors import Interrupted, TimedOut
from jupyter_sky.cluster.inventory import kernel_files, registry, row_updates
from jupyter_sky.cluster.volumes import mount, unattached
from jupyter_sky.errors import ScriptFailed, SkyError, UsageError
from jupyter_sky.notebook.project import volumes
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.local import Local
from tests import waiting
from tests.lab.buckets import SECRET, Buckets, serving
from tests.node.volumes.conftest import holding
from tests.notebook.conftest import Notebook
from tests.notebook.kernels import LiveNotebook
from tests.notebook.programs.terminal import run_command
from tests.paths import ROOT

BIG = bytes(range(256)) * 40_000  # more than is fetched at a time


@pytest.fixture(scope="module")
def bucket() -> Iterator[Buckets]:
    with serving() as made:
        yield made


@pytest.fixture
def photos(bucket: Buckets) -> Buckets:
    for name in bucket.names():
        bucket.client.delete_object(Bucket=bucket.name, Key=name)
    bucket.put({"2024/a.txt": b"first", "2024/deep/b.txt": b"second", "2024/big.bin": BIG})
    bucket.asked.clear()
    return bucket


def test_ranks_find_the_files_of_a_bucket_at_a_path(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 4 --volume s3://photos/2024:{data}:ro")
    said = notebook.run(
        f"""%%sky --stdout all
import hashlib, os, subprocess
from pathlib import Path
print(sorted(os.listdir("{data}")), Path("{data}/big.bin").stat().st_size)
print([each.name for each in sorted(Path("{data}").rglob("*.txt"))])
print(open("{data}/a.txt").read(), Path("{data}/deep/b.txt").read_text())
print(subprocess.run(["cksum", "{data}/big.bin"], capture_output=True, text=True).stdout.split()[1])
"""
    )
    # Nothing else, where a dataset takes each folder for a class.
    assert said.count(f"['a.txt', 'big.bin', 'deep'] {len(BIG)}") == 4
    assert said.count("['a.txt', 'b.txt']") == 4
    assert said.count("first second") == 4
    assert said.count(f"\n{len(BIG)}\n") + said.count(f" {len(BIG)}\n") >= 4
    assert photos.reads("2024/a.txt") == photos.reads("2024/deep/b.txt") == 1
    assert photos.reads("2024/big.bin") == 2  # its two parts
    notebook.run("%sky down")
    assert not list(tmp_path.iterdir())


def test_what_ranks_write_goes_back_and_nothing_else_is_touched(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 2 --volume s3://photos/2024:{data}")
    notebook.run(
        f"""%%sky --ranks 0
import os
os.makedirs("{data}/out", exist_ok=True)
with open("{data}/out/result.csv", "w") as file:
    file.write("1,2")
with open("{data}/a.txt", "a") as file:  # what is not there yet is fetched before
    file.write(" and more")
os.remove("{data}/deep/b.txt")
"""
    )
    assert "wrote 2 files, 17 B, to s3://photos/2024" in notebook.stderr
    assert photos.get("2024/out/result.csv") == b"1,2"
    assert photos.get("2024/a.txt") == b"first and more"
    assert photos.get("2024/deep/b.txt") == b"second"
    assert photos.reads("2024/big.bin") == 0
    notebook.run(f"%%sky --ranks 1\nimport os\nos.remove('{data}/out/result.csv')")
    assert photos.names() == ["2024/a.txt", "2024/big.bin", "2024/deep/b.txt"]
    notebook.run("%%sky --ranks 0\nx = 1")
    assert "wrote" not in notebook.stderr


def test_what_a_script_writes_goes_back_at_its_end_or_is_said_not_to(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --cluster train --nodes 1 --volume s3://photos/2024:{data}")
    notebook.run(f"%%sky --sh\necho 1,2 > {data}/result.csv")
    assert "wrote 1 file, 4 B, to s3://photos/2024" in notebook.stderr
    assert photos.get("2024/result.csv") == b"1,2\n"
    # Also where it fails: what it has written until then may be all that is left of it.
    with pytest.raises(ScriptFailed):
        notebook.run(f"%%sky --sh\necho half > {data}/half.csv; exit 3")
    assert photos.get("2024/half.csv") == b"half\n"
    (tmp_path / "task.yaml").write_text(f"run: echo weights > {data}/model")
    with photos.gone():
        notebook.run(f"%sky launch {tmp_path / 'task.yaml'}")
        assert f"{data}/model" in notebook.stderr
        notebook.run("%sky down --discard train")


def test_what_a_task_writes_goes_back_at_the_end_of_its_last_part(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    """What its setup writes may be large: nothing waits for it, and no time of the run is spent."""
    data = tmp_path / "data"
    notebook.run(f"%sky up --cluster train --nodes 1 --volume s3://photos/2024:{data}")
    task = tmp_path / "task.yaml"
    task.write_text(f"setup: echo set > {data}/up\nrun: echo 1,2 > {data}/result.csv")
    notebook.run(f"%sky launch {task}")
    assert notebook.stderr.count("wrote") == 1
    assert "wrote 2 files, 8 B, to s3://photos/2024" in notebook.stderr
    # Where its setup fails, that is the last part.
    task.write_text(f"setup: echo half > {data}/half.csv; exit 3\nrun: echo no")
    with pytest.raises(ScriptFailed):
        notebook.run(f"%sky launch {task}")
    assert photos.get("2024/half.csv") == b"half\n"
    # And where its time is over.
    task.write_text(f"setup: echo late > {data}/late.csv\nrun: sleep 600")
    with pytest.raises(TimedOut):
        notebook.run(f"%sky launch --timeout 8s {task}")
    assert photos.get("2024/late.csv") == b"late\n"


def test_a_file_that_is_replaced_is_not_fetched_before(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/2024:{data}")
    notebook.run(f"%%sky\nopen('{data}/big.bin', 'w').write('new')\nopen('{data}/a.txt', 'w')")
    assert photos.get("2024/big.bin") == b"new"
    assert photos.get("2024/a.txt") == b""
    assert photos.reads("2024/big.bin") == 1  # by this test
    with pytest.raises(FileExistsError):
        notebook.run(f"%%sky\nopen('{data}/deep/b.txt', 'x')")
    assert notebook.run(f"%%sky\nprint(open('{data}/deep/b.txt').read())") == "second\n"


def test_a_checkpoint_in_a_volume_is_in_the_bucket_when_it_is_saved(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    again = tmp_path / "again"
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/runs:{data}")
    notebook.run(
        f"""%%sky
import jupyter_sky as sky
sky.save("{data}/run-1", step=1)
sky.save("{data}/run-1", step=2)"""
    )
    saved = [name for name in photos.names() if name.startswith("runs/run-1/")]
    assert len({name.split("/")[2] for name in saved}) == 2  # the marker, and one save
    notebook.run(
        f"""%%sky --volume s3://photos/runs:{again}:ro --out step
import jupyter_sky as sky
step = sky.load("{again}/run-1")["step"]"""
    )
    assert notebook.namespace["step"] == 2


def test_bad_volumes_are_refused_in_one_sentence(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    for line, sentence in {
        "s3://photos": "type where the data is and where it goes on the nodes",
        "ftp://host/x:/data": "ftp:// is not known: volumes are of s3://, gs://, hf://, file://.",
        "s3://photos:data": "data is no whole path: a volume is at one like /data or ~/data",
        f"s3://nosuch:{tmp_path}/new": "there is no bucket nosuch: check its name",
        # Nobody connects to a machine for it.
        f"s3://nosuch:{tmp_path}/new --hosts no.such.host": "there is no bucket nosuch: check its",
        f"s3://photos/none:{tmp_path}/new:ro": "there is nothing at s3://photos/none.",
        f"file:///no/folder:{tmp_path}/new": "there is no folder /no/folder on the node.",
        f"s3://photos/2024:{full}": f"{full} is not empty: choose a path that is not there yet.",
        "s3://photos/2024:/proc/data": "/proc/data cannot be made",
        f"s3://photos:{tmp_path}/a --volume hf://datasets/x/y:{tmp_path}/a": "give each a path of",
    }.items():
        with pytest.raises(SkyError) as raised:
            notebook.run(f"%sky up --nodes 1 --volume {line}")
        assert sentence in str(raised.value)
        assert str(raised.value).count("\n") == 0
    assert [each.name for each in tmp_path.iterdir()] == ["full"]
    assert "No cluster is running" in notebook.run("%sky status")


def test_errors_of_a_read_say_what_is_wrong(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/2024:{data}:ro")
    for action in (f"open('{data}/a.txt', 'w')", f"os.remove('{data}/a.txt')"):
        with pytest.raises(PermissionError, match=r"data is read-only, as its `:ro` says"):
            notebook.run(f"%%sky\nimport os\n{action}")
    photos.client.delete_object(Bucket=photos.name, Key="2024/deep/b.txt")
    with pytest.raises(OSError, match="it is not in the bucket any longer"):
        notebook.run(f"%%sky\nopen('{data}/deep/b.txt').read()")
    notebook.run(
        f"""%%sky --out seen
import os
import jupyter_sky as sky
volume = sky.volume("{data}")
volume.refresh()
volume.fetch("big.bin")
seen = sorted(os.listdir("{data}")), os.listdir("{data}/deep"), repr(volume)"""
    )
    names, deep, shown = notebook.namespace["seen"]
    assert [each for each in names if not each.startswith(".")] == ["a.txt", "big.bin", "deep"]
    assert deep == []
    assert "2 files, 10.2 MB of 10.2 MB on this node" in shown


def test_a_volume_joins_a_cluster_that_is_up(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data, shared, other = tmp_path / "data", tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    (shared / "x.txt").write_text("shared")
    notebook.run("%sky up --nodes 1")
    notebook.run("%%sky\nkept = 1")
    cell = f"%%sky --volume s3://photos/2024:{data}:ro --volume file://{shared}:{other}\n"
    said = notebook.run(
        f"{cell}print(kept, open('{data}/a.txt').read(), open('{other}/x.txt').read())"
    )
    assert "1 first shared" in said
    with pytest.raises(SkyError, match="give each a path of its own"):
        notebook.run(f"%%sky --volume s3://photos/2025:{data}\nprint()")
    notebook.run(f"%%sky\nopen('{other}/y.txt', 'w').write('back')")
    assert (shared / "y.txt").read_text() == "back"


def test_no_key_of_the_user_is_on_the_node(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/2024:{data}:ro")
    held = [path for path in paths.runtime().rglob("*") if path.is_file()]
    assert held
    assert not [path for path in held if SECRET.encode() in path.read_bytes()]


def test_a_volume_whose_process_was_killed_shows_no_zeros_and_can_be_made_again(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/2024:{data}")
    notebook.run(f"%%sky\nopen('{data}/deep/b.txt').read()")
    note = json.loads(data.with_name(".data.jupyter-sky-volume").read_text())
    os.kill(note["pid"], signal.SIGKILL)
    waiting.until(lambda: not (data / "a.txt").exists())
    with pytest.raises(FileNotFoundError):
        notebook.run(f"%%sky\nopen('{data}/a.txt')")

    # The next cluster has the volume again, and what was written meanwhile is not lost.
    (data / "late").write_text("late")
    notebook.run("%sky down")
    said = notebook.run(
        f"%%sky --nodes 1 --volume s3://photos/2024:{data}\nprint(open('{data}/a.txt').read())"
    )
    assert "first" in said
    assert f"when it ended is in {data}.left-1 now: late\n" in notebook.stderr
    assert (tmp_path / "data.left-1" / "late").read_text() == "late"


def test_what_is_written_after_a_run_goes_back_before_an_idle_cluster_ends(
    notebook: Notebook, photos: Buckets, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    notebook.run(f"%sky up --nodes 1 --idle-timeout 2s --volume s3://photos/2024:{data}")
    notebook.run(
        f"""%%sky
import threading
threading.Timer(1, lambda: open("{data}/late", "w").write("late")).start()"""
    )
    waiting.until(lambda: not data.exists())
    assert photos.get("2024/late") == b"late"


@pytest.mark.parametrize("slow", ["mount", "write_back"])
def test_a_cluster_whose_data_is_on_its_way_is_not_idle(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    data, shared = tmp_path / "data", tmp_path / "shared"
    shared.mkdir()
    notebook.run("%sky up --nodes 1 --idle-timeout 3s")
    carry_out = getattr(mount, slow)

    async def take_long(*given: Any) -> Any:
        """Take longer than the cluster may be idle, as much data does."""
        await asyncio.sleep(6)
        return await carry_out(*given)

    monkeypatch.setattr(mount, slow, take_long)
    notebook.run(f"%%sky --volume file://{shared}:{data}\nkept = 1")
    assert notebook.run("%%sky\nprint(kept)") == "1\n"


def test_a_pool_has_volumes(photos: Buckets, tmp_path: Path) -> None:
    data = tmp_path / "data"

    @sky.compute
    def read(name: str) -> str:
        Path(f"{data}/of-{name}").write_text("result")
        return Path(f"{data}/{name}").read_text()

    volume = sky.Volume("s3://photos/2024", str(data))
    with sky.ComputePool(nodes=2, volumes=[volume]) as pool:
        assert read("a.txt") @ pool == ["first", "first"]
    assert photos.get("2024/of-a.txt") == b"result"
    with pytest.raises(UsageError, match="volumes is a list: type volumes="):
        sky.ComputePool(nodes=2, volumes=f"s3://photos:{data}")


def test_credentials_are_sent_again_before_they_end(
    notebook: Notebook, photos: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(mount, "_RENEW_BEFORE", 0)
    monkeypatch.setattr(mount, "RENEW_EVERY", 2)
    notebook.run(f"%sky up --nodes 1 --volume s3://photos/2024:{data}:ro")
    waiting.until(lambda: photos.asked.count("POST /") >= 3)  # requests for session tokens
    assert notebook.run(f"%%sky\nprint(open('{data}/a.txt').read())") == "first\n"


def test_what_is_written_into_a_volume_of_another_notebook_goes_back(
    opened: Callable[..., LiveNotebook], photos: Buckets, tmp_path: Path
) -> None:
    first, second = opened("first"), opened("second")
    data = tmp_path / "data"
    first.succeed("%%sky --cluster c --nodes 1 --plugin none\npass")
    second.succeed("%sky attach c")
    first.succeed(f"%%sky --volume s3://photos/2024:{data}\npass")
    cell = second.succeed(f"%%sky\nopen('{data}/new.txt', 'w').write('here')")
    assert "wrote 1 file, 4 B, to s3://photos/2024" in str(cell.shown)
    assert photos.get("2024/new.txt") == b"here"
    second.succeed(f"%%sky --background\nopen('{data}/late.txt', 'w').write('there')")
    second.succeed("%sky down c")
    assert photos.get("2024/late.txt") == b"there"


@pytest.mark.parametrize("recorded", ["now", "by an older version"])
def test_volumes_are_known_to_others_whatever_settings_say_of_other_providers(
    opened: Callable[..., LiveNotebook], photos: Buckets, tmp_path: Path, recorded: str
) -> None:
    first, second = opened("first"), opened("second")
    volume = f"--volume s3://photos/2024:{tmp_path / 'data'}"
    first.succeed("%config Sky.hosts = ['gpu1', 'gpu2']\n%config Sky.plugin = ['none']")
    first.succeed(f"%sky up --provider local --nodes 1 --cluster c {volume}")
    if recorded != "now":
        line = f"--nodes 1 --provider local --hosts gpu1,gpu2 --cluster c {volume}"
        row_updates.record_line(registry.rows()[0].id, line)
    second.succeed("%sky attach c")
    cell = second.succeed(f"%%sky\nopen('{tmp_path / 'data'}/new.txt', 'w').write('here')")
    assert "wrote 1 file, 4 B, to s3://photos/2024" in str(cell.shown)


@pytest.fixture
def rented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes of this computer be machines that are given back with what is on them."""
    for module in (volumes, unattached):
        monkeypatch.setattr(module, "CloudProvider", Local)


def test_machines_stay_while_their_files_are_nowhere_else(
    notebook: Notebook,
    photos: Buckets,
    tmp_path: Path,
    rented: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(signal, "signal", lambda *given: None)  # those of pytest stay
    notebook.run(f"%sky up --cluster train --nodes 1 --volume s3://photos/2024:{data}")
    with photos.gone():
        notebook.run(f"%%sky\nopen('{data}/model', 'w').write('weights')")
        refused = f"{data}/model, on .* `%sky down --discard` ends"
        with pytest.raises(SkyError, match=refused):
            notebook.run("%sky down")
        # So does a program that is not connected to it.
        assert run_command("down", "train") == 1
        assert re.search(refused.replace("%", "jupyter "), capsys.readouterr().err)
        assert "train: ended" in notebook.run("%sky down --discard train")


def test_discard_ends_a_cluster_that_does_not_answer(
    notebook: Notebook,
    photos: Buckets,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unattached, "CloudProvider", Local)  # as machines that are rented
    monkeypatch.setattr(signal, "signal", lambda *given: None)  # those of pytest stay
    data = tmp_path / "data"
    notebook.run(f"%sky up --cluster silent --nodes 1 --volume s3://photos/2024:{data}")
    row = registry.find("silent")
    assert row
    agent = psutil.Process(row.machines[0]["pid"])
    agent.suspend()
    assert run_command("down", "silent") == 1  # a program, which is not connected to it
    said = capsys.readouterr().err
    assert "silent stays as it was: what ranks of node 0 have written" in said
    assert "`jupyter sky down --discard silent` ends the cluster without them" in said
    assert run_command("down", "--discard", "silent") == 0
    assert registry.find("silent") is None


def test_stop_while_files_are_written_back_says_that_the_cluster_is_up(
    notebook: Notebook, photos: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"

    def write_back(mounts: Mounts, tick: Callable[[], object]) -> None:
        raise KeyboardInterrupt

    notebook.run(f"%sky up --cluster train --nodes 1 --volume s3://photos/2024:{data}")
    with monkeypatch.context() as patch:
        patch.setattr(Mounts, "write_back", write_back)
        with pytest.raises(Interrupted, match="train is still up: `%sky down train` goes on"):
            notebook.run("%sky down train")
    assert "1" in notebook.run("%%sky --cluster train\nprint(1)")
    assert "train: ended" in notebook.run("%sky down --discard train")


def test_a_long_way_back_is_shown_and_goes_on_where_nobody_waits(
    photos: Buckets, tmp_path: Path
) -> None:
    held, data = threading.Event(), tmp_path / "data"
    with holding(photos.address, held) as address:
        env = {"PYTHONPATH": str(ROOT), "AWS_ENDPOINT_URL": address}
        notebook = LiveNotebook(tmp_path / "slow.ipynb", runtime=f"{tmp_path}", **env)
        try:
            notebook.succeed("%load_ext jupyter_sky")
            up = "%sky up --cluster slow --nodes 1 --plugin none --volume s3://photos/2024"
            notebook.succeed(f"{up}:{data}")
            held.set()
            cell = notebook.start(f"%%sky\nwritten = open('{data}/new.txt', 'w').write('new')")
            shown = "slow: writing back to s3://photos/2024"
            notebook.until(cell, lambda cell: shown in cell.shown)
            notebook.interrupt()
            sentence = notebook.finish(cell).sentence
            assert "Files of ranks may still be on their way to s3://photos/2024: the" in sentence
            assert "the next cell or `%sky down slow` waits for them." in sentence
            ending = notebook.start("%sky down slow")
            notebook.until(ending, lambda cell: shown in cell.shown)
            # Who ended it in the sidebar sees no cell.
            waiting.until(lambda: note_of(tmp_path) == "writing back to s3://photos/2024")
            held.clear()
            assert "slow: ended" in notebook.finish(ending).stdout
            # The answer to whoever waits no longer says what was written, or the next one.
            ends = ("everything is written back to s3://photos/2024", "wrote 1 file, 3 B, to s3")
            assert ending.shown[0].removeprefix("slow: ").startswith(ends)
            assert photos.get("2024/new.txt") == b"new"
        finally:
            held.clear()
            notebook.close()


def note_of(runtime: Path) -> str:
    """What the sidebar reads that the cluster of a kernel is doing."""
    (report,) = kernel_files.paths(runtime)
    (cluster,) = kernel_files.read(report).clusters
    return str(cluster.snapshot["cluster"]["note"])


def test_what_nobody_can_be_told_keeps_no_cluster_from_being_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the terminal of ``jupyter sky run`` was closed meanwhile."""

    class Closed(StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    volume = Volume.parse("s3://photos/2024:/data")
    answer = ["1 file"], ["2 are not"]
    mounts = SimpleNamespace(volumes=[volume], write_back=lambda tick: answer, lost=list)
    cluster: Any = SimpleNamespace(name="rented", mounts=mounts)
    monkeypatch.setattr(sys, "stderr", Closed())
    volumes.write_back(cast(InteractiveShell, None), cluster)


@pytest.mark.parametrize("how", ["stop", "scale"])
def test_files_on_their_way_back_are_shown_before_machines_go(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "_LONG", -1.0)

    def write_back(*stay: int, tick: Callable[[], object]) -> tuple[list[str], list[str]]:
        tick()
        return ["wrote 1 file, 3 B, to s3://photos"], []

    mounts = SimpleNamespace(
        volumes=(Volume.parse("s3://photos:/data"),),
        write_back=write_back,
        write_back_leaving=lambda stay, tick: write_back(stay, tick=tick),
    )
    rented: Any = SimpleNamespace(name="train", provider=sky.AWS(), mounts=mounts, alive=True)
    shown: list[Any] = []
    if how == "stop":
        volumes.write_back_or_refuse(rented, shown.append)
    else:
        volumes.write_back_before_leaving(rented, 1, False, shown.append)
    assert shown == ["writing back to s3://photos", "wrote 1 file, 3 B, to s3://photos"]
