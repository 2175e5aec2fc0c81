"""What a node says of files that it could not write back."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import shutil
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.api.checkpoints.place import CheckpointPlace
from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.node.volumes import volumes as volumes_module
from jupyter_sky.node.volumes.opening import LIST
from jupyter_sky.node.volumes.volumes import Volumes
from jupyter_sky.transport.frames import Message
from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import (
    READS_EVERYTHING,
    Keeper,
    forwarding,
    holding,
    keeping,
    order_of,
)
from tests.waiting import PATIENCE, until


def test_a_keeper_that_is_killed_while_it_writes_has_not_written_everything(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    workplace.mkdir(exist_ok=True)
    data, place = tmp_path / "data", str(workplace / "killed.sock")
    is_written, begun, killed = threading.Event(), threading.Event(), threading.Event()

    def goes_on(size: int, is_back: bool) -> bool:
        if is_written.is_set():
            begun.set()
            killed.wait(PATIENCE)
        return True

    async def use(address: str) -> tuple[list[Any], str]:
        volumes = Volumes(tmp_path, place, tmp_path)

        async def ask(op: str, **fields: Any) -> Message:
            return await cast(Awaitable[Message], volumes.handlers[op](fields))

        mounted = await ask("mount", volumes=[order_of("s3://photos/d", data, address)])
        assert mounted["trouble"] == ""
        (data / "result").write_bytes(b"result")
        (tmp_path / LIST).unlink()  # as where shared memory is cleaned up
        is_written.set()
        told, left = (
            asyncio.create_task(ask("write_back")),
            asyncio.create_task(volumes.write_back()),
        )
        await asyncio.to_thread(begun.wait, PATIENCE)
        there = psutil.process_iter(["ppid", "cmdline"])  # has no command for what has ended
        mine = [each for each in there if each.info["ppid"] == os.getpid()]
        [keeper] = [each for each in mine if f"{place}.v" in (each.info["cmdline"] or ())]
        keeper.kill()
        async with asyncio.timeout(PATIENCE):
            answers = (await told)["volumes"], await left
        killed.set()
        await volumes.end()
        return answers

    with forwarding(bucket.address, goes_on) as address:
        [written], left = asyncio.run(use(address))
    what = "the process that keeps the volumes was killed"
    assert written["path"] == str(data)
    assert written["trouble"].startswith(f"{data}: {what}: what ranks have written is still there")
    assert left == f"{what}, and what ranks have written stays on the node"
    assert (data / "result").read_bytes() == b"result"


def test_a_save_does_not_fail_for_what_is_elsewhere_in_the_volume(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    with keeping(data, bucket, workplace, without=READS_EVERYTHING) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        (data / "closed").mkdir()
        (data / "closed").chmod(0)  # to the keeper, as one of another user
        for step in (1, 2):
            sky.save(data / "run", step=step)
        (data / "run" / "log").write_bytes(b"log")
        marker = json.loads((data / "run" / "checkpoint.json").read_text())
        assert json.loads(bucket.get("d/run/checkpoint.json")) == marker
        there = {name.split("/")[2] for name in bucket.names()}
        assert there == {"checkpoint.json", marker["save"]}
        [written] = keeper.ask("write_back")["volumes"]
        assert written["left"] == ["closed"]
        (data / "closed").chmod(0o700)


def test_a_marker_is_held_back_only_by_what_is_left_beside_it(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    with keeping(data, bucket, workplace, without=READS_EVERYTHING) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        for name in ("whole", "run"):
            (data / name).mkdir()
            (data / name / "part").write_bytes(b"part")
            (data / name / "checkpoint.json").write_bytes(b"{}")
        (data / "run" / "part").chmod(0)  # to the keeper, as one of another user
        [written] = keeper.ask("write_back")["volumes"]
        assert sorted(written["left"]) == ["run/checkpoint.json", "run/part"]
        assert bucket.names() == ["d/whole/checkpoint.json", "d/whole/part"]
        (data / "run" / "part").chmod(0o600)


def test_a_node_that_is_about_to_be_taken_away_writes_back_until_it_is(
    bucket: Buckets, tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.mkdir(exist_ok=True)
    data = tmp_path / "data"
    monkeypatch.setattr(volumes_module, "_AGAIN_AFTER", 0.1)

    async def use() -> None:
        volumes = Volumes(tmp_path, str(workplace / "leaving.sock"), tmp_path)
        order = order_of("s3://photos/d", data, bucket.address)
        mounted = await cast(Awaitable[Message], volumes.handlers["mount"]({"volumes": [order]}))
        assert mounted["trouble"] == ""
        volumes.begin_write_back(until=time.time() + PATIENCE)
        try:
            for name in ("by-a-rank", "by-a-hook"):
                (data / name).write_text("late")
                await asyncio.to_thread(until, lambda: f"d/{name}" in bucket.names())  # noqa: B023
        finally:
            await volumes.end()

    asyncio.run(use())


def test_the_save_before_goes_from_the_bucket_also_if_another_keeper_wrote_it(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    bucket.put({"d/run/notes": b"of the user", "d/other/a": b"a"})
    for step in (1, 2):
        with keeping(data, bucket, workplace) as keeper:
            assert keeper.mount("s3://photos/d") == ""
            sky.save(data / "run", step=step)
    marker = json.loads(bucket.get("d/run/checkpoint.json"))
    there = {"/".join(name.split("/")[1:3]) for name in bucket.names()}
    assert there == {"other/a", "run/notes", "run/checkpoint.json", f"run/{marker['save']}"}


@pytest.mark.parametrize("way", ["a link in it", "a link to it", "from a folder beside it"])
def test_a_checkpoint_is_in_the_bucket_whichever_way_its_path_goes(
    bucket: Buckets, tmp_path: Path, workplace: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    (tmp_path / "beside").mkdir()
    (tmp_path / "linked").symlink_to("data")
    monkeypatch.chdir(tmp_path / "beside")
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        (data / "run-7").mkdir()
        (data / "latest").symlink_to("run-7")
        path = {"a link in it": f"{data}/latest", "a link to it": f"{tmp_path}/linked/run-7"}
        sky.save(path.get(way, "../data/run-7"), step=1)
        save = json.loads(bucket.get("d/run-7/checkpoint.json"))["save"]
        assert f"d/run-7/{save}/.metadata" in bucket.names()


def test_a_checkpoint_may_be_saved_into_the_folder_of_a_volume(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    with keeping(tmp_path / "data", bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        with CheckpointPlace.of(str(keeper.data)).locked():  # nobody else has locked it
            assert keeper.ask("write_back")["volumes"][0]["trouble"] == ""


@pytest.mark.parametrize("there_now", [None, "late"])
def test_a_folder_that_is_gone_takes_nothing_from_the_bucket(
    there_now: str | None, keeper: Keeper, tmp_path: Path
) -> None:
    shared, data, elsewhere = tmp_path / "shared", keeper.data, tmp_path / "elsewhere"
    shared.mkdir()
    assert keeper.mount(f"file://{shared}", options={}, token=None) == ""
    for name in ("result", "run/step"):
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_bytes(b"result")
    assert keeper.ask("write_back")["volumes"][0]["trouble"] == ""
    data.rename(elsewhere)  # as where its disk is unmounted
    if there_now:
        data.mkdir()
        (data / there_now).write_bytes(b"late")
    named = {"path": str(data), "names": ["late"], "gone": ["run"]}  # as by `sky.save`
    gone = f"{data} was removed or replaced: nothing is removed from file://{shared} now"
    for trouble in (gone, ""):  # once, or it would keep a machine from ending
        assert keeper.ask("write_back")["volumes"][0]["trouble"] == trouble
    if not there_now:
        assert keeper.ask("write_back", **named)["volumes"][0]["trouble"] == f"{data} was removed"
    assert (shared / "result").exists()
    assert (shared / "run/step").exists()
    if there_now:
        assert (shared / there_now).read_bytes() == b"late"
        assert keeper.ask("write_back", **named)["volumes"][0]["trouble"] == ""
        assert not (shared / "run").exists() or not any((shared / "run").iterdir())
        shutil.rmtree(data)
    elsewhere.rename(data)
    (data / "result").unlink()
    assert keeper.ask("write_back")["volumes"][0]["trouble"] == ""
    assert not (shared / "result").exists()


def test_names_that_are_no_files_of_the_volume_are_left(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        (data / "run").mkdir()
        (data / "run" / "part").write_bytes(b"part")
        (data / "empty").mkdir()
        (data / "latest").symlink_to("run")
        names = ["latest", "latest/part", "./run", "run/", "empty", "gone"]
        [written] = keeper.ask("write_back", path=str(data), names=names)["volumes"]
        assert written["left"] == ["latest", "latest/part", "./run", "run/"]
        assert written["trouble"] == "it is no file or folder of the volume itself"
        [written] = keeper.ask("write_back", path=str(data), names=["run"])["volumes"]
        assert (written["files"], written["left"]) == (1, [])


def test_a_save_stays_on_the_disk_while_the_bucket_is_out_of_reach(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data, is_lost = tmp_path / "data", threading.Event()
    run = data / "run"

    def saves(names: list[str]) -> set[str]:
        return {name.split("/")[2] for name in names} - {"checkpoint.json"}

    with (
        forwarding(bucket.address, lambda size, is_back: not is_lost.is_set()) as address,
        keeping(data, bucket, workplace) as keeper,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        sky.save(run, step=1)
        former, there = bucket.get("d/run/checkpoint.json"), bucket.names()
        is_lost.set()
        for step in (2, 3):
            with pytest.warns(UserWarning, match=r"complete on the nodes .* not in its bucket yet"):
                sky.save(run, step=step)
            assert sky.load(run) == {"step": step}
        is_lost.clear()
        assert bucket.get("d/run/checkpoint.json") == former
        assert set(there) <= set(bucket.names())
        [written] = keeper.ask("write_back")["volumes"]
        assert written["left"] == []
        marker = json.loads((run / "checkpoint.json").read_text())
        assert json.loads(bucket.get("d/run/checkpoint.json")) == marker
        assert saves(bucket.names()) == {marker["save"], marker["before"]["save"]}
        sky.save(run, step=4)
        assert saves(bucket.names()) == {json.loads(bucket.get("d/run/checkpoint.json"))["save"]}


def test_a_save_is_written_beside_other_volumes_that_take_long(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    held, slow = threading.Event(), tmp_path / "slow"
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d") == ""
        order = order_of("s3://photos/slow", slow, address)
        assert keeper.ask("mount", volumes=[order])["trouble"] == ""
        (slow / "large").write_bytes(b"large")
        held.set()
        whole = threads.submit(keeper.ask, "write_back")
        until(lambda: "slow/large" in bucket.names())  # of which the keeper does not hear yet
        sky.save(keeper.data / "run", step=1)
        assert "d/run/checkpoint.json" in bucket.names()
        assert not whole.done()
        held.clear()
        assert [each["left"] for each in whole.result()["volumes"]] == [[], []]


def test_what_is_written_while_the_bucket_is_listed_stays(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    lists, held, step = threading.Event(), list[threading.Event](), 1

    def goes_on(size: int, is_back: bool) -> bool:
        if is_back and lists.is_set():
            lists.clear()
            held.append(saved := threading.Event())
            saved.wait(PATIENCE)
        return True

    with (
        forwarding(bucket.address, goes_on) as address,
        keeping(data, bucket, workplace) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        sky.save(data / "run", step=step)
        lists.set()
        refreshed = threads.submit(keeper.ask, "refresh", path=str(data))
        while not refreshed.done():
            until(lambda: held or refreshed.done())
            if held:  # an answer, of several that a listing takes
                step += 1
                sky.save(data / "run", step=step)
                lists.set()
                held.pop().set()
        assert step > 1
        assert refreshed.result()["trouble"] == ""
        assert sky.load(data / "run") == {"step": step}
        save = json.loads((data / "run" / "checkpoint.json").read_text())["save"]
        assert {each.name for each in (data / "run").iterdir()} == {save, "checkpoint.json"}


def test_files_that_are_being_written_wait_until_they_settle(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data = tmp_path / "data"
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        (data / "run").mkdir()
        for name in ("finished", "run/checkpoint.json"):
            (data / name).write_bytes(b"{}")
        written: list[Any] = []

        def write() -> bool:
            with (data / "run" / "part").open("ab") as file:
                file.write(b"more")
            written[:] = keeper.ask("write_back", quietly=True, settled=True)["volumes"]
            return "d/finished" in bucket.names()

        until(write)
        assert bucket.names() == ["d/finished"]
        assert sorted(written[0]["left"]) == ["run/checkpoint.json", "run/part"]
        assert written[0]["trouble"] == "it is still being written"


def test_names_to_write_back_are_those_of_files_and_folders_that_are_there(
    bucket: Buckets, tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        for number, name in enumerate(["runs/a/", "./runs/b", f"{data}/runs/c", "runs/../runs/d"]):
            (data / name).mkdir(parents=True)
            (data / name / "part").write_bytes(b"part")
            sky.volume(data).write_back(name)
            assert len(bucket.names()) == number + 1
        for name, said in (
            ("*.pt", "there is no"),
            ("../else", "is not in"),
            ("/else", "is not in"),
        ):
            with pytest.raises(sky.UsageError, match=said):
                sky.volume(data).write_back(name)
        (data / "runs" / "a").rename(data / "runs" / "moved")
        # Other ranks may have it on their nodes, or write it just now, if there are any.
        place = dict.fromkeys([each.name for each in fields(InstanceInfo)], 0)
        monkeypatch.setenv("COMPUTE_POOL", json.dumps({**place, "world_size": 2, "peers": []}))
        with pytest.warns(UserWarning, match=r"no runs/a in .*/data on this node: nothing is"):
            sky.volume(data).write_back("runs/a")
        sky.volume(data).write_back("runs/a", "runs/b")
        monkeypatch.setenv("COMPUTE_POOL", json.dumps({**place, "world_size": 1, "peers": []}))
        with pytest.raises(sky.UsageError, match=r"there is no runs/a in .*/data: name files"):
            sky.volume(data).write_back("runs/a")
        sky.volume(data).write_back("runs/b")
        # It stays, since under its new name it is on this node alone.
        assert "d/runs/a/part" in bucket.names()
        sky.volume(data).write_back(str(data))
        there = [name.removeprefix("d/runs/") for name in bucket.names()]
        assert there == ["b/part", "c/part", "d/part", "moved/part"]


def test_a_file_that_changes_while_it_is_uploaded_waits_for_the_next_round(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    data, held, put = tmp_path / "data", threading.Event(), "PUT /photos/d/late"
    with (
        holding(bucket.address, held) as address,
        keeping(data, bucket, workplace) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        (data / "late").write_bytes(b"former")
        held.set()
        asked: list[Future[Any]] = []

        def begins() -> bool:
            if not asked or asked[-1].done():
                asked.append(threads.submit(keeper.ask, "write_back", quietly=True, settled=True))
            return put in bucket.asked

        until(begins)
        (data / "late").write_bytes(b"newer")
        held.clear()
        [written] = asked[-1].result()["volumes"]
        assert (written["left"], written["trouble"]) == (["late"], "it is still being written")
        assert bucket.asked.count(put) == 1


def test_changes_through_a_memory_map_are_written_each_time(
    bucket: Buckets, keeper: Keeper
) -> None:
    assert keeper.mount("s3://photos/d") == ""
    table = keeper.data / "table"
    table.write_bytes(bytes(mmap.PAGESIZE))
    with table.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        as_made = table.stat().st_mtime_ns
        until(lambda: time.time_ns() > as_made + 10**8)  # than which clocks of disks are finer
        content[:5] = b"maybe"
        if table.stat().st_mtime_ns == as_made:
            pytest.skip("this file system does not note changes through maps, such as tmpfs")
        for word in (b"first", b"later"):
            content[:5] = word
            [written] = keeper.ask("write_back")["volumes"]
            assert (written["files"], written["trouble"]) == (1, "")
            assert bucket.get("d/table")[:5] == word
        assert keeper.ask("write_back")["volumes"][0]["files"] == 0
