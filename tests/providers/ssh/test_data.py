"""Large data on slow and broken links: compressed where that pays, and never sent twice."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from jupyter_sky.cluster.files.bring import Download
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.serialization.blobs import PIECE, digest
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.event_loop import wait
from jupyter_sky.transport.frames import ProtocolError
from jupyter_sky.transport.tasks import cancel_all
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.ssh.conftest import cut
from tests.waiting import PATIENCE, until

EASY = b"step 12, loss 0.4711, learning rate 0.001\n" * 200_000
HARD = np.random.default_rng(0).integers(0, 255, 8_000_000, np.uint8).tobytes()


@pytest.fixture
def slow(lab: Lab, start: Callable[..., Cells]) -> Iterator[Cells]:
    """A host at the end of a line of 20 Mbit/s."""
    cells = start("lab1", framework=False)
    lab.hosts[0].slow_down(20)
    yield cells
    lab.hosts[0].speed_up()


def push(cells: Cells, data: bytes | np.ndarray) -> int:
    """Send data and return how many bytes that took."""
    before = cells.cluster.sent_bytes
    watch(cells, data)
    assert cells.ask("(len(data), __import__('zlib').crc32(data))") == [
        (len(data), zlib.crc32(data))
    ] * len(cells.cluster.all_ranks)
    return cells.cluster.sent_bytes - before


def watch(cells: Cells, data: bytes | np.ndarray) -> list[TransferProgress]:
    """Send data and return what the user is told meanwhile."""
    cells.namespace["data"] = data
    seen: list[TransferProgress] = []
    run = cells.start("pass", names=["data"])
    run.follow(sending=seen.append)
    run.values()
    return seen


def test_what_compresses_is_compressed_on_a_slow_link_and_what_does_not_is_not(
    slow: Cells,
) -> None:
    sent = push(slow, HARD)
    assert len(HARD) < sent < 1.02 * len(HARD)
    before = slow.cluster.sent_bytes
    note = watch(slow, EASY)[-1].note
    assert slow.cluster.sent_bytes - before < 0.4 * len(EASY)
    # Each transfer speaks for itself, whatever left before.
    assert re.search(r"compressed to (1?\d|2\d|3\d)%, because the connection takes ", note), note
    note = watch(slow, HARD[::-1])[-1].note
    assert "compression would not help" in note


def test_what_came_back_from_a_host_is_not_sent_to_it_again(slow: Cells) -> None:
    run = slow.start("import numpy; made = numpy.random.rand(250_000)", values={0: ["made"]})
    run.follow()
    assert push(slow, run.values()[0]["made"]) < 100_000


def test_what_has_arrived_is_said_host_by_host(lab: Lab, start: Callable[..., Cells]) -> None:
    cells = start("lab1,lab2", framework=False)
    lab.hosts[1].slow_down(10)  # for seconds, in some of which nobody may look
    try:
        seen = watch(cells, HARD)
    finally:
        lab.hosts[1].speed_up()
    assert seen[-1].shares == {"lab1": 1.0, "lab2": 1.0}
    between = [each.shares["lab2"] for each in seen if each.shares["lab1"] == 1.0]
    assert len({int(10 * share) for share in between}) > 3, seen


@pytest.fixture
def slow_notebook(lab: Lab, tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook with a host at the end of a line of 20 Mbit/s."""
    notebook = LiveNotebook(tmp_path / "n.ipynb", HOME=str(lab.home), PYTHONPATH=str(ROOT))
    try:
        notebook.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}")
        notebook.succeed("%%sky --hosts lab1 --plugin none\npass")
        lab.hosts[0].slow_down(20)
        yield notebook
    finally:
        lab.hosts[0].speed_up()
        notebook.close()


def test_stop_while_a_value_comes_back_says_how_to_get_it(
    lab: Lab, slow_notebook: LiveNotebook
) -> None:
    before = returned(lab)
    coming = slow_notebook.start("%%sky --out data\nimport os\ndata = os.urandom(20_000_000)")
    until(lambda: returned(lab) > before + 2_000_000)
    slow_notebook.interrupt()
    assert slow_notebook.finish(coming).sentence == (
        "KeyboardInterrupt: stopped while 20 MB were on their way from lab1; the run itself is "
        "over. --out brought nothing: `%sky pull data` does."
    )
    assert slow_notebook.succeed("%%sky\nprint(len(data))").stdout == "20000000\n"


def test_a_value_whose_way_is_cut_says_so_and_comes_when_it_is_mended(
    lab: Lab, slow_notebook: LiveNotebook
) -> None:
    before = returned(lab)
    coming = slow_notebook.start("%%sky --out data\nimport os\ndata = os.urandom(6_000_000)")
    until(lambda: returned(lab) > before + 1_000_000)
    with cut(lab.hosts[0]):
        said = "no connection to lab1 since .*; the run is over, and what it brings comes when"
        slow_notebook.until(coming, lambda cell: cell.shown and re.search(said, cell.shown[-1]))
    assert slow_notebook.finish(coming).error is None
    assert "connected to lab1 again" in coming.shown[-1]
    assert slow_notebook.value("len(data)") == 6_000_000


def test_the_user_sees_what_was_chosen_and_why(slow_notebook: LiveNotebook) -> None:
    slow_notebook.succeed(f"data = {EASY[:42]!r} * 1_000_000")
    said = slow_notebook.succeed("%%sky\nprint(len(data))").shown[0]
    assert re.search(
        r"sending data \(42 MB\): sent in .* s \(compressed to \d+%, because the "
        r"connection takes [\d.]+ MB a second\)",
        said,
    ), said


def test_between_nodes_it_is_the_link_between_them_that_counts(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    lab.hosts[1].slow_down(20)
    try:
        before = received(lab, 1)
        push(cells, EASY)
        assert received(lab, 1) - before < 0.8 * len(EASY)
    finally:
        lab.hosts[1].speed_up()


def test_stop_while_files_are_sent_says_which_are_not_there(
    lab: Lab, slow_notebook: LiveNotebook
) -> None:
    (slow_notebook.path.parent / "photos.bin").write_bytes(HARD)
    before = received(lab, 0)
    sending = slow_notebook.start("%sky put photos.bin")
    until(lambda: received(lab, 0) > before + 1_000_000)
    slow_notebook.interrupt()
    assert slow_notebook.finish(sending).sentence == (
        "KeyboardInterrupt: photos.bin (8 MB) is not on all nodes: "
        "the same line sends what they lack."
    )
    assert "photos.bin (8 MB) is on 1 node" in slow_notebook.succeed("%sky put photos.bin").stdout
    slow_notebook.succeed("%%sky --out size\nimport os\nsize = os.path.getsize('photos.bin')")
    assert slow_notebook.value("size") == len(HARD)


@pytest.mark.parametrize(
    "line",
    ["%sky push film", "%%sky --background\nprint(len(film))", "%%sky --workdir film\npass"],
    ids=["push", "background", "workdir"],
)
def test_stop_of_whatever_sends_much_is_seen_in_its_line(
    lab: Lab, slow_notebook: LiveNotebook, line: str
) -> None:
    (slow_notebook.path.parent / "film").mkdir()
    (slow_notebook.path.parent / "film" / "part").write_bytes(HARD * 5)
    slow_notebook.succeed("film = open('film/part', 'rb').read()")
    before = received(lab, 0)
    sending = slow_notebook.start(line)
    until(lambda: received(lab, 0) > before + 1_000_000)
    slow_notebook.interrupt()
    assert "KeyboardInterrupt" in slow_notebook.finish(sending).traceback
    assert sending.shown[0].endswith("sending film (40 MB): interrupted")


@pytest.mark.parametrize("by", ["stop", "the end of its node"])
def test_what_ends_while_much_is_sent_leaves_no_line_that_says_it_is_going_on(
    lab: Lab, slow_notebook: LiveNotebook, by: str
) -> None:
    (slow_notebook.path.parent / "film.bin").write_bytes(HARD * 5)
    before = received(lab, 0)
    sending = slow_notebook.start("%sky put film.bin")
    until(lambda: received(lab, 0) > before + 1_000_000)
    if by == "stop":
        slow_notebook.interrupt()
        assert "film.bin (40 MB) is not on all nodes" in slow_notebook.finish(sending).sentence
        assert sending.shown[-1].endswith("sending files (40 MB): interrupted")
        return
    for agent in lab.hosts[0].processes(r"-m jupyter_sky\.node /"):
        agent.kill()
    assert "ClusterLost" in slow_notebook.finish(sending).traceback
    assert sending.shown[0].endswith("sending files (40 MB): failed")


def test_a_file_that_cannot_come_now_says_why_and_comes_later(
    lab: Lab, slow_notebook: LiveNotebook
) -> None:
    before = returned(lab)
    slow_notebook.succeed(
        "%%sky\nimport os\nopen('results.bin', 'wb').write(os.urandom(8_000_000))"
    )
    coming = slow_notebook.start("%sky get results.bin")
    until(lambda: returned(lab) > before + 1_000_000)
    with cut(lab.hosts[0]):
        said = r"bringing results.bin \(8 MB\)(: \d+ %)? \(no connection to lab1 since"
        slow_notebook.until(coming, lambda cell: cell.shown and re.search(said, cell.shown[-1]))
    slow_notebook.until(coming, lambda cell: "no connection" not in cell.shown[-1])
    assert "brought results.bin (8 MB) from rank 0" in slow_notebook.finish(coming).shown[-1]


def test_files_that_are_sent_after_the_folder_was_removed_are_where_ranks_look(
    slow_notebook: LiveNotebook,
) -> None:
    (slow_notebook.path.parent / "words.txt").write_text("here")
    slow_notebook.succeed('%%sky --sh\nrm -rf "$PWD"')
    slow_notebook.succeed("%sky put words.txt")
    assert slow_notebook.succeed("%%sky\nprint(open('words.txt').read())").stdout == "here\n"
    sent = slow_notebook.succeed("%%sky --sh\ncat words.txt")
    assert (sent.stdout, sent.stderr) == ("here", "")


def received(lab: Lab, number: int) -> int:
    return lab.hosts[number].carried()[0]


def returned(lab: Lab) -> int:
    """Return how many bytes the first host has sent."""
    return lab.hosts[0].carried()[1]


@pytest.mark.parametrize("way", ["value", "file"])
def test_what_comes_back_is_compressed_on_a_slow_link_where_it_helps(
    lab: Lab, slow: Cells, tmp_path: Path, way: str
) -> None:
    slow.run("import numpy")
    slow.run("easy = b'step 12, loss 0.4711, learning rate 0.001\\n' * 400_000")
    slow.run("hard = numpy.random.default_rng(0).integers(0, 255, 8_000_000, numpy.uint8)")
    slow.run(
        "hard = hard.tobytes()\nfor name in ('easy', 'hard'):\n"
        "    with open(name, 'wb') as file: file.write(globals()[name])"
    )

    def bring(name: str) -> bytes:
        if way == "value":
            return slow.run("pass", values={0: [name]})[0][name]
        [found] = slow.cluster.files.find(0, [name])["files"]
        slow.cluster.files.bring(0, [Download(found, tmp_path / name)], lambda count: None)
        return (tmp_path / name).read_bytes()

    before = returned(lab)
    assert bring("easy") == 2 * EASY
    # What leaves before the speed of the link is known is not: on a busy machine, up to half.
    assert returned(lab) - before < 0.7 * len(2 * EASY)
    before = returned(lab)
    assert bring("hard") == HARD
    assert len(HARD) < returned(lab) - before < 1.1 * len(HARD)


def test_a_value_that_nobody_waits_for_any_longer_leaves_the_link_to_others(
    lab: Lab, slow: Cells
) -> None:
    slow.namespace["data"] = np.frombuffer(HARD, np.uint8)  # it is a blob as it is
    slow.run("pass", names=["data"])
    connection = slow.cluster._controller.connection(0)

    async def fetch() -> memoryview:
        return await connection.fetch(digest(HARD), len(HARD))

    async def begin() -> None:
        fetching = asyncio.ensure_future(fetch())
        before = await asyncio.to_thread(returned, lab)
        while await asyncio.to_thread(returned, lab) < before + 500_000:
            assert not fetching.done()
        await cancel_all([fetching])

    before = returned(lab)
    wait(begin())
    assert wait(fetch()) == HARD
    assert returned(lab) - before < 1.6 * len(HARD)


def test_a_blob_goes_on_where_the_link_broke(lab: Lab, slow: Cells) -> None:
    slow.namespace["data"] = HARD
    halfway = threading.Event()
    run = slow.start("pass", names=["data"])

    def watch(progress: TransferProgress) -> None:
        if progress.arrived > progress.total // 2:
            halfway.set()

    thread = threading.Thread(target=run.follow, kwargs={"sending": watch})
    before = received(lab, 0)
    thread.start()
    assert halfway.wait(PATIENCE)
    lab.hosts[0].cut()
    while slow.cluster.snapshot()["cluster"]["note"] == "":
        time.sleep(0.02)
    lab.hosts[0].mend()
    thread.join()
    run.values()
    assert slow.ask("__import__('zlib').crc32(data)") == [zlib.crc32(HARD)]
    # What was under way is sent again, and what had arrived is not.
    assert received(lab, 0) - before < 1.5 * len(HARD)


@pytest.mark.parametrize(
    ("whole", "payload"),
    [
        (PIECE + 1, zlib.compress(bytes(PIECE + 1))),
        (1000, zlib.compress(bytes(999))),
        (1000, b"no compressed data"),
        (-1, zlib.compress(b"")),
    ],
)
def test_a_piece_that_is_not_what_it_says_is_refused(whole: int, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        expand({"whole": whole}, memoryview(payload), PIECE)


def test_a_piece_never_grows_beyond_its_size() -> None:
    # A megabyte of zeros in a kilobyte: no more than was announced is made of it.
    bomb = zlib.compress(bytes(1_000_000))
    assert expand({"whole": 1000}, memoryview(bomb), PIECE) == bytes(1000)
