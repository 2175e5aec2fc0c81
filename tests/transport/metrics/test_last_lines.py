"""The last lines of what comes piece by piece are those of a terminal, however much came before."""

from __future__ import annotations

import io

from tqdm import tqdm

from jupyter_sky.cluster.runs.progress_bars import find_progress
from jupyter_sky.formatting import last_terminal_line
from jupyter_sky.transport.metrics.last_lines import LastLines


class Printed(io.StringIO):
    """A stream whose content goes into last lines, as ranks print it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = LastLines()
        self.size = 0

    def write(self, text: str) -> int:
        self.lines.add(text.encode())
        self.size += len(text)
        return len(text)


def epochs(stream: Printed, batches: int):
    """Train for three epochs with tqdm; yield after each batch."""
    look = {"file": stream, "ncols": 80, "mininterval": 0}
    for _ in tqdm(range(3), desc="epochs", **look):
        for _ in tqdm(range(batches), desc="batches", leave=False, **look):
            yield


def test_the_outer_bar_is_found_however_often_the_inner_one_is_drawn() -> None:
    stream = Printed()
    seen = set()
    for at, _ in enumerate(epochs(stream, 1000)):
        if at % 40 == 0:  # more than is looked at in between
            text = stream.lines.text
            progress = find_progress(text)
            assert progress is not None
            seen.add((progress["label"], progress["count"], last_terminal_line(text)[:12]))
            assert len(text) < 300
    assert stream.size > 200_000
    assert seen == {
        ("epochs", "0/3", "epochs:   0%"),
        ("epochs", "1/3", "epochs:  33%"),
        ("epochs", "2/3", "epochs:  67%"),
    }
    stream.write("\rdone\nand more")
    assert last_terminal_line(stream.lines.text) == "and more"


def test_a_character_may_come_in_two_pieces() -> None:
    lines = LastLines()
    for byte in "a\n\r\x1b[32m½ é\x1b[0m".encode():
        lines.add(bytes([byte]))
        lines.text  # noqa: B018 - to be asked in between changes nothing
    assert last_terminal_line(lines.text) == "½ é"


def test_of_much_at_once_the_end_is_kept() -> None:
    lines = LastLines()
    lines.add(b"x" * 10_000_000 + b"\nend")
    assert lines.text.endswith("x\nend")
    assert len(lines.text) == 4096


def test_a_line_that_is_drawn_again_below_others() -> None:
    lines = LastLines()
    for step in range(100):
        lines.add(b"\r\x1b[2Ka %d\n\x1b[2Kb %d\n\x1b[2A" % (step, step))
        assert last_terminal_line(lines.text) == f"a {step}"
    lines.add(b"\n\nbelow")
    assert last_terminal_line(lines.text) == "below"
