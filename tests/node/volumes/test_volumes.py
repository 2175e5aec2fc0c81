"""The volumes of a node, as its agent sees them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from jupyter_sky.node.volumes import volumes as volumes_module
from jupyter_sky.node.volumes.opening import LIST
from jupyter_sky.node.volumes.volumes import Volumes
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.volumes.asking import note_places
from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import READS_EVERYTHING, Keeper, keeping
from tests.waiting import PATIENCE

NOBODY = 65534

CUT = """\
#!{python}
import socket, sys, threading
listener = socket.create_server(sys.argv[-1], family=socket.AF_UNIX)
def answer():
    while True:
        client, _ = listener.accept()
        client.makefile().readline()
        client.sendall(b'{{"volumes": [')
        client.close()
threading.Thread(target=answer, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_keeper_whose_answer_is_cut_is_taken_to_have_ended(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.mkdir(exist_ok=True)
    keeper = tmp_path / "python"
    keeper.write_text(CUT.format(python=sys.executable))
    keeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(keeper))

    async def use() -> str:
        volumes = Volumes(tmp_path, str(workplace / "cut.sock"), tmp_path)
        mounting = volumes.handlers["mount"]({"volumes": []})
        answer = await cast(Awaitable[Message], mounting)
        await volumes.end()
        return str(answer["trouble"])

    assert asyncio.run(use()) == "the process that keeps the volumes has ended"


def test_a_keeper_that_stands_still_for_a_moment_answers_all_who_ask_meanwhile(
    keeper: Keeper, bucket: Buckets, tmp_path: Path
) -> None:
    assert keeper.mount("s3://photos/d") == ""

    async def use() -> list[Message]:
        volumes = Volumes(tmp_path, "", tmp_path)
        volumes._socket = keeper.socket
        volumes._process = cast(asyncio.subprocess.Process, object())
        keeper.process.send_signal(signal.SIGSTOP)
        try:
            asked = [volumes.handlers["volumes"]({}) for _ in range(100)]
            answers = [asyncio.ensure_future(cast(Awaitable[Message], each)) for each in asked]
            await asyncio.wait(answers, timeout=0.5)
        finally:
            keeper.process.send_signal(signal.SIGCONT)
        return await asyncio.gather(*answers)

    said = asyncio.run(use())
    paths = [[each["path"] for each in answer["volumes"]] for answer in said]
    assert paths == [[str(keeper.data)]] * 100


def test_the_list_for_ranks_stays_where_the_keeper_does_not_say_what_it_has(
    tmp_path: Path, workplace: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if json.loads(await reader.readline())["op"] == "mount":
            writer.write(b'{"trouble": "", "notes": []}\n')
        writer.close()

    async def use() -> str:
        place = str(workplace / "mute.sock")
        async with await asyncio.start_unix_server(answer, f"{place}.v"):
            volumes = Volumes(tmp_path, place, tmp_path)
            volumes._process = cast(asyncio.subprocess.Process, object())
            mounting = volumes.handlers["mount"]({"volumes": []})
            return str((await cast(Awaitable[Message], mounting))["trouble"])

    workplace.mkdir(exist_ok=True)
    (tmp_path / LIST).write_text('[{"path": "/data"}]')
    assert asyncio.run(use()) == "the process that keeps the volumes has ended"
    assert (tmp_path / LIST).read_text() == '[{"path": "/data"}]'


def test_a_node_ends_though_its_keeper_cannot_be_killed(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging:
        """A process that waits for a disk, so that a signal has no effect."""

        stdin = io.BytesIO()

        async def wait(self) -> None:
            await asyncio.Event().wait()

        def kill(self) -> None:
            """Have no effect so far."""

    answers = threading.Event()

    async def use() -> None:
        volumes = Volumes(tmp_path, str(workplace / "hanging.sock"), tmp_path)
        volumes._process = cast(asyncio.subprocess.Process, Hanging())
        volumes._told = [{"path": str(tmp_path)}]
        try:
            async with asyncio.timeout(PATIENCE):
                await volumes.end()
        finally:
            answers.set()

    monkeypatch.setattr(volumes_module, "_LAST_WITHIN", 0.1)
    # Whoever else looks at that disk waits, too.
    monkeypatch.setattr(os, "walk", lambda folder: filter(None, [answers.wait() and ()]))
    asyncio.run(use())


def test_runs_that_end_while_it_is_written_back_have_it_written_once_more(
    tmp_path: Path, workplace: Path
) -> None:
    async def use() -> int:
        asked, goes_on = asyncio.Semaphore(0), asyncio.Event()
        rounds: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            rounds.append(await reader.readline())
            asked.release()
            await goes_on.wait()
            writer.write(b'{"volumes": []}\n')
            writer.close()

        place = str(workplace / "slow.sock")
        async with await asyncio.start_unix_server(answer, f"{place}.v"):
            volumes = Volumes(tmp_path, place, tmp_path)
            volumes._process = cast(asyncio.subprocess.Process, object())
            volumes.begin_write_back()
            await asked.acquire()
            for _ in range(5):
                volumes.begin_write_back()
            goes_on.set()
            await volumes._writing.finish(PATIENCE)
        return len(rounds)

    workplace.mkdir(exist_ok=True)
    assert asyncio.run(use()) == 2


def test_a_folder_in_which_the_user_may_not_write_is_refused(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    data = tmp_path / "data"
    data.mkdir(mode=0o555)
    with keeping(data, bucket, workplace, without=READS_EVERYTHING) as keeper:
        assert keeper.mount("s3://photos/d") == (
            f"{data} cannot be made (Permission denied): choose a path that you may write on the "
            "node, like ~/data"
        )
        assert keeper.ask("state")["volumes"] == []
    assert list(tmp_path.rglob("*")) == [data]


def test_a_folder_of_another_user_is_refused_though_all_may_write_there(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first"})
    keeper.data.mkdir()
    keeper.data.chmod(0o777)
    os.chown(keeper.data, NOBODY, NOBODY)
    assert keeper.mount("s3://photos/d") == (
        f"{keeper.data} belongs to another user, who could change what is in it: choose a path "
        "that is not there yet"
    )
    assert list(keeper.data.parent.rglob("*")) == [keeper.data]
    keeper.data.rmdir()
    assert keeper.mount("s3://photos/d") == ""  # nothing is left of the first attempt
    assert (keeper.data / "a").read_bytes() == b"first"


def test_files_stay_though_another_user_says_that_they_are_of_a_volume(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first"})
    keeper.data.mkdir()
    (keeper.data / "notes").write_bytes(b"the user's own")
    (keeper.data / "notes").chmod(0o444)
    planted = note_places(keeper.data)[0]
    planted.write_text('{"read_only": true, "pid": 0}')
    os.chown(planted, NOBODY, NOBODY)
    assert keeper.mount("s3://photos/d") == (
        f"{keeper.data} is not empty: choose a path that is not there yet"
    )
    assert (keeper.data / "notes").read_bytes() == b"the user's own"
