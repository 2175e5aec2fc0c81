"""What a rank writes to stdout and stderr comes in the order in which it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_sky.transport.protocol.events import Output
from tests.cluster.conftest import start


@pytest.fixture(scope="module")
def one() -> Iterator[Any]:
    cells = start(1, framework=False)
    cells.run("import os, subprocess, sys")
    yield cells
    cells.cluster.down()


def written(cells: Any) -> list[tuple[str, str]]:
    """What came, with pieces of the same stream joined."""
    found: list[tuple[str, str]] = []
    for event in cells.events:
        if not isinstance(event, Output):
            continue
        text = event.data.decode()
        if found and found[-1][0] == event.stream:
            found[-1] = (event.stream, found[-1][1] + text)
        else:
            found.append((event.stream, text))
    return found


def test_the_two_streams_take_turns_as_they_were_written_to(one) -> None:
    one.run(
        "for step in range(300):\n    print('out', step)\n    print('err', step, file=sys.stderr)"
    )
    expected = [
        (name, f"{name[3:]} {step}\n") for step in range(300) for name in ("stdout", "stderr")
    ]
    assert written(one) == expected


def test_unfinished_lines_keep_their_place(one) -> None:
    one.run(
        "sys.stdout.write('a')\nsys.stderr.write('b')\nsys.stdout.write('c')\n"
        "sys.stderr.write('d\\n');"
    )
    assert written(one) == [("stdout", "a"), ("stderr", "b"), ("stdout", "c"), ("stderr", "d\n")]


def test_programs_write_between_the_lines_of_python(one) -> None:
    one.run(
        "print('one')\nprint('two', file=sys.stderr)\n"
        "subprocess.run('echo three; echo four >&2', shell=True)\n"
        "print('five')"
    )
    text = "".join(text for _, text in written(one))
    assert text.index("one") < text.index("two") < text.index("three") < text.index("five")
    assert "\x00" not in text and "four" in text


def test_a_bar_between_prints_does_not_end_up_in_their_lines(one) -> None:
    one.run(
        "for step in range(3):\n"
        "    sys.stderr.write(f'\\r {step}0%|##   | {step}/3 [00:00<00:01]')\n"
        "    print('loss', step)"
    )
    log = one.cluster.log(0, tail=20).data.decode()
    assert "]loss" not in log
    assert one.cluster.snapshot()["ranks"][0]["progress"]["count"] == "2/3"


def test_where_python_is_led_elsewhere_there_are_no_marks(one, tmp_path) -> None:
    file = tmp_path / "written"
    one.run(
        f"kept = os.dup(1)\nfd = os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY)\nos.dup2(fd, 1)\n"
        "print('into the file')\nprint('err', file=sys.stderr)\nprint('more')\n"
        "sys.stdout.flush()\nos.dup2(kept, 1)"
    )
    assert file.read_bytes() == b"into the file\nmore\n"


def test_a_child_that_is_forked_writes_too(one) -> None:
    one.run(
        # Python 3.12 warns of forks beside threads.
        "import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n"
        "print('parent')\nsys.stdout.flush()\npid = os.fork()\n"
        "if pid == 0:\n    print('child', file=sys.stderr, flush=True)\n"
        "    print('end', flush=True)\n    os._exit(0)\nos.waitpid(pid, 0)\nprint('parent again')"
    )
    # Where the child's stderr stands among what the parent prints next is not known to either.
    assert one.text("stdout") == "parent\nend\nparent again\n"
    assert one.text("stderr") == "child\n"
