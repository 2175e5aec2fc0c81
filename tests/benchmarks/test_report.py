"""The exit status of the benchmarks, by which a script learns that a target was missed."""

from __future__ import annotations

import pytest

from tests.benchmarks.__main__ import report
from tests.benchmarks.measure import Base, Row, Target

REACHED = Row("reached", 0.5, "s", Target(1))
WITHOUT_TARGET = Row("without target", 5.0, "s")
MISSED = Row("missed", 1.5, "s", Target(1))
SLOWER_THAN_ITS_BASE = Row("ratio", 9, "/s", Target(1, ratio=True, least=True), Base("base", 10))
UNMEASURED = Row("unmeasured", None, "s", Target(1), note="there is no lab")


@pytest.mark.parametrize(
    ("rows", "status", "said"),
    [
        ([REACHED, WITHOUT_TARGET], 0, ""),
        ([REACHED, MISSED], 1, "missed: missed (≤ 1)\n"),
        ([SLOWER_THAN_ITS_BASE], 1, "missed: ratio (≥ 1 ×)\n"),
        ([UNMEASURED], 2, "not measured: unmeasured: there is no lab\n"),
        (
            [MISSED, UNMEASURED],
            2,
            "not measured: unmeasured: there is no lab\nmissed: missed (≤ 1)\n",
        ),
    ],
)
def test_the_exit_status_tells_of_misses_and_failures(
    rows: list[Row], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(rows) == status
    assert capsys.readouterr().err == said
