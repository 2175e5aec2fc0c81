"""What ranks log: `sky.log` on real ranks, and what the notebook keeps of it."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.metrics.curves import Curves
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.providers.local import Local
from jupyter_sky.transport.metrics.series import pack
from jupyter_sky.transport.protocol.events import Metrics
from tests.cluster.conftest import Cells
from tests.waiting import until


def _logged(cells: Cells, code: str, **options: object) -> RunHandle:
    run = cells.start(f"import jupyter_sky as sky\n{code}", **options)  # type: ignore[arg-type]
    run.follow()
    run.check()
    return run


def test_what_a_rank_logs_is_a_table(cells: Cells) -> None:
    run = _logged(
        cells,
        """for step in range(5):
    if rank == 0:
        sky.log(step=10 * step, loss=torch.tensor(1 / (1 + step)), ok=True)
sky.log({"eval/acc": rank})""",
    )
    table = run.metrics.rows()
    assert set(table["rank"]) == {0, 1, 2, 3}
    first = [
        (step, round(loss, 4))
        for rank, step, loss in zip(table["rank"], table["step"], table["loss"], strict=True)
        if rank == 0 and not math.isnan(loss)
    ]
    assert first == [(0, 1.0), (10, 0.5), (20, 0.3333), (30, 0.25), (40, 0.2)]
    assert [value for value in table["eval/acc"] if not math.isnan(value)] == [0.0, 1.0, 2.0, 3.0]
    frame = run.metrics.frame()
    assert list(frame.columns) == ["rank", "step", "loss", "ok", "eval/acc"]
    # The record of the run has them, with the head's first.
    curves = cells.cluster.snapshot(run=run.id)["curves"]
    assert [(curve["name"], curve["rank"]) for curve in curves][:3] == [
        ("loss", 0),
        ("ok", 0),
        ("eval/acc", 0),
    ]
    assert curves[0]["steps"] == [0, 10, 20, 30, 40]
    assert curves[0]["last"] == 0.2
    cells.run("pass")
    assert cells.cluster.metrics().rows() == table


def test_it_comes_while_the_run_goes_on(cells: Cells) -> None:
    code = "import jupyter_sky as sky\nsky.log(loss=3)\ntime.sleep(600)"
    run = cells.start(code)
    try:
        until(lambda: len(cells.cluster.snapshot(run=run.id)["curves"]) == 4)
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()
    # A run that was stopped keeps them.
    assert cells.cluster.snapshot(run=run.id)["curves"][0]["values"] == [3]


def test_very_many_figures_stay_small(cells: Cells) -> None:
    run = _logged(
        cells,
        """if rank < 2:
    for n in range(30_000):
        sky.log(a=n, b=-50 if n == 12_345 else 1)""",
    )
    curves = {(each["name"], each["rank"]): each for each in run.metrics.view(is_last=True)}
    a, b = curves["a", 0], curves["b", 1]
    assert a["count"] == b["count"] == 30_000
    assert len(a["values"]) < 1000
    assert (min(a["values"]), max(a["values"]), a["last"]) == (0, 29_999, 29_999)
    assert min(b["values"]) == -50
    table = run.metrics.rows()
    assert len(table["step"]) <= 4 * 8192
    assert run.metrics.left_out > 2 * 2 * 30_000 - 4 * 8192 - 1


def test_many_names_and_bad_figures(cells: Cells) -> None:
    run = _logged(
        cells,
        """if rank == 1:
    for step in range(50):
        sky.log({f"<b>{n}</b>": n * step for n in range(64)}, step=step)
    sky.log(step=50, loss=float("nan"))
    sky.log(step=51, loss=float("inf"))
    sky.log(step=52, loss=2)
    sky.log({"x" * 500: 1})""",
    )
    view = run.metrics.view(is_last=True)
    assert len(view) == 66
    loss = next(each for each in view if each["name"] == "loss")
    assert (loss["values"], loss["gaps"]) == ([None, None, 2], 2)
    assert len(view[-1]["name"]) == 100
    last = next(each for each in view if each["name"] == "<b>63</b>")
    assert (last["count"], last["last"]) == (50, 63 * 49)
    # A rank whose figures did not leave for a while has left out some between the extremes.
    column = [each for each in run.metrics.rows()["<b>63</b>"] if not math.isnan(each)]
    assert (min(column), max(column)) == (0, 63 * 49)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("sky.log(loss='low')", "sky.log: loss is a str, which is no number"),
        ("sky.log(loss=torch.ones(3))", r"loss is a Tensor of shape \[3\], which is no number"),
        ("sky.log(step=float('nan'), loss=1)", "the step is nan: give a finite number"),
        ("sky.log(3)", "int has none: write sky.log"),
        ("sky.log()", "needs a figure with a name"),
        ("sky.log({3: 1})", "3 is no name for a curve"),
        ("sky.log(loss=None)", "loss is a NoneType, which is no number"),
        ("sky.log(loss=10**400)", "loss is too large for a curve"),
    ],
)
def test_bad_input_says_what_to_do(cells: Cells, call: str, sentence: str) -> None:
    with pytest.raises(RemoteError, match=sentence):
        _logged(cells, call, ranks=(0,))


def test_each_run_says_once_that_figures_of_other_processes_are_left_out(cells: Cells) -> None:
    code = """import warnings, jupyter_sky as sky
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
for _ in range(2):
    if not os.fork():  # as DataLoader does for its workers
        sky.log(loss=7)
        os._exit(0)
    os.wait()"""
    for _ in range(2):
        cells.run(code, show=cells.cluster.all_ranks)
        told = cells.text("stderr").splitlines()
        assert len(told) == 4, told
        assert "like the workers of a DataLoader, is left out: return it, and log it in" in told[0]


def test_a_rank_that_is_lost_keeps_what_it_had_sent(cells: Cells) -> None:
    code = """import jupyter_sky as sky
for step in range(3):
    sky.log(step=step, loss=step)
time.sleep(600)"""
    run = cells.start(code)

    def have_come() -> bool:
        curves = cells.cluster.snapshot(run=run.id)["curves"]
        return [curve["values"] for curve in curves] == [[0, 1, 2]] * 4

    until(have_come)
    os.kill(cells.cluster.state.ranks[1].pid or 0, signal.SIGTERM)
    run.follow()
    assert run.failed
    assert have_come()


def test_another_kernel_that_attaches_has_all_of_them(cells: Cells, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""import jupyter_sky as sky
sky.log(loss=3)
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
sky.log(loss=2)"""
    run = cells.start(code)
    until(lambda: len(cells.cluster.snapshot(run=run.id)["curves"]) == 4)
    row = next(row for row in registry.rows() if row.id == cells.cluster.id)
    visitor = Cluster.visit(row, Local())
    assert visitor is not None
    try:
        again = visitor.pop_unseen_run()
        assert again is not None
        go.touch()
        again.follow()
        run.follow()
        assert again.metrics.rows() == run.metrics.rows()
        assert again.metrics.rows()["loss"] == [3, 2] * 4
    finally:
        visitor.close()


def test_curves_of_a_further_attempt_go_on_where_it_does() -> None:
    before = Curves()
    before.add(Metrics(0, "r", {"loss": pack(iter([(1, 0.9), (2, 0.8), (3, 0.7)]))}, {}))
    before.add(Metrics(0, "r", {"stepless": pack(iter([(0, 5.0), (1, 6.0), (2, 7.0)]))}, {}))
    before.add(Metrics(0, "r", {"late": pack(iter([(3, 1.0)]))}, {}))
    after = Curves(before, 2)
    assert after.rows()["step"] == [0, 1, 2]
    after.add(Metrics(0, "r", {"loss": pack(iter([(3, 0.75), (4, 0.6)]))}, {}))
    after.add(Metrics(0, "r", {"stepless": pack(iter([(0, 7.5)]))}, {}))
    drawn = {each["name"]: (each["steps"], each["values"]) for each in after.view(is_last=True)}
    assert drawn == {"loss": ([1, 2, 3, 4], [0.9, 0.8, 0.75, 0.6]), "stepless": ([0], [7.5])}
    assert after.left_out == 0
    # Without a checkpoint, or one whose step is not known, all is done again.
    assert not Curves(before, None).has_any


def test_what_a_node_makes_up_is_kept_within_limits() -> None:
    curves = Curves()
    for number in range(70):
        points = {f"{number} {name}" * 90: b"\0" * 19 for name in range(300)}
        curves.add(Metrics(number, "run", points, {}))
    view = curves.view(is_last=True)
    assert len(view) == 512
    assert max(len(each["name"]) for each in view) == 100
    assert len(curves.rows()["rank"]) < 20_000
    curves.add(Metrics(0, "run", {"x": pack(iter([(math.nan, 1.0), (math.inf, 2.0)]))}, {"x": -5}))
    assert json.dumps(curves.view(is_last=True), allow_nan=False)
