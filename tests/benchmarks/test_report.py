"""The exit status of the benchmarks, by which a script learns that a target was missed; options."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.benchmarks import picture
from tests.benchmarks.__main__ import _options, report
from tests.benchmarks.measure import Base, Point, Row, Target

SVG = "{http://www.w3.org/2000/svg}"

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


def test_a_fault_is_chosen_by_a_part_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert _options(["--fault", "sshd"]).fault == ["sshd"]
    with pytest.raises(SystemExit):
        _options(["--fault", "sshd", "--fault", "ssdh"])
    said = capsys.readouterr().err
    assert "no fault has 'ssdh' in its name" in said
    assert "\n  sshd was restarted on every host\n" in said


def test_the_picture_has_a_bar_for_each_that_was_measured() -> None:
    row = Row("push <big>", 0.5, "s", peers={"Ray": 2.0, "Dask": "cannot", "other": 1.0})
    drawn = ElementTree.fromstring(picture.draw([row, WITHOUT_TARGET, UNMEASURED], "2 cores"))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    named = ["jupyter_sky", "0.5", "other", "1", "Ray", "2"]
    assert texts == ["push <big>, s", *named, "2 cores"]
    widths = [float(each.attrib["width"]) for each in drawn.iter(f"{SVG}rect")]
    assert [width / widths[-1] for width in widths] == [0.25, 0.5, 1.0]


def test_nothing_that_peers_have_is_a_picture_of_nothing_but_its_machine() -> None:
    drawn = ElementTree.fromstring(picture.draw([REACHED], picture.machine()))
    assert [each.text for each in drawn.iter(f"{SVG}text")] == [picture.machine()]
    assert "cores" in picture.machine()


def test_figures_against_the_number_of_nodes_are_a_curve_with_its_target() -> None:
    figures = {64: 4.0, 16: 2.0, 256: 1.0}
    rows = [Row("time", y, "s", Target(8), point=Point("time", x)) for x, y in figures.items()]
    drawn = ElementTree.fromstring(picture.draw([*rows, UNMEASURED], "2 cores"))
    [line] = [each.attrib["points"] for each in drawn.iter(f"{SVG}polyline")]
    points = [tuple(map(float, each.split(","))) for each in line.split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    left, middle, right = (x for x, _ in points)
    assert middle - left == right - middle
    two, four, one = (y for _, y in points)
    assert four < two < one
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    assert texts == ["time, s", "≤ 8", "2", "16", "4", "64", "1", "256", "2 cores"]
