"""Whether ranks are alike: what their names stand for, and where they differ first."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_sky.errors import SkyError
from tests.cluster.conftest import Cells
from tests.waiting import until

_MODEL = """torch.manual_seed(0)
same_model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
same_optimizer = torch.optim.Adam(same_model.parameters())
same_model(torch.ones(3, 4)).sum().backward()
same_optimizer.step()"""


def _lines(cells: Cells, *names: str, random: bool = False) -> list[str]:
    return list(cells.cluster.looks.same(names, random).lines)


def test_a_model_and_its_optimizer_are_the_same(cells: Cells) -> None:
    cells.run(_MODEL)
    compared = cells.cluster.looks.same(["same_model", "same_optimizer"])
    assert compared.differ == ()
    model, optimizer = compared.lines
    assert model == "same_model: the same on ranks 0-3 (9 parts, 296 B)"
    assert optimizer.startswith("same_optimizer: the same on ranks 0-3 (")


def test_the_first_parameter_that_differs_is_named(cells: Cells) -> None:
    cells.run(f"""{_MODEL}
with torch.no_grad():
    if rank == 2:
        same_model[0].weight[1, 2] += 0.25
        same_model[1].bias += 1
        same_optimizer.state[same_model[0].weight]["exp_avg"][0] += 2""")
    compared = cells.cluster.looks.same(["same_model", "same_optimizer"])
    assert compared.differ == ("same_model", "same_optimizer")
    assert compared.lines == (
        "same_model: rank 2 differs from ranks 0-1, 3 in same_model.0.weight (max difference "
        "0.25), and in 1 more of 9 parts",
        "same_optimizer: rank 2 differs from ranks 0-1, 3 in same_optimizer.state[0].exp_avg "
        "(max difference 2)",
    )


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "v = torch.zeros(3, 3 + (rank > 1))",
            "ranks 2-3 differ from ranks 0-1 in v (torch.Tensor "
            "float32 [3, 3] on ranks 0-1; torch.Tensor float32 [3, 4] on ranks 2-3)",
        ),
        (
            "v = {'lr': 0.1 + (rank == 3), 'steps': [1, 2]}",
            "rank 3 differs from ranks 0-2 in v['lr'] (max difference 1)",
        ),
        (
            "v = {'b': 1, 'a': 2} if rank else {'a': 2, 'b': 1}",
            "the same on ranks 0-3 (3 parts, 240 B)",
        ),
        (
            "v = [1, 2, 3][:3 - (rank == 1)]",
            "rank 1 differs from ranks 0, 2-3 in v (list 3 items "
            "on ranks 0, 2-3; list 2 items on rank 1), and in 1 more of 4 parts",
        ),
        ("v = rank", "ranks 0-3 all differ from each other in v (max difference 1)"),
        ("v = float('nan')", "the same on ranks 0-3 (1 part, 24 B)"),
        (
            "v = torch.tensor([1.0, float('nan') if rank == 1 else 2.0])",
            "rank 1 differs from ranks 0, 2-3 in v (1 number NaN on one side only)",
        ),
        (
            "import numpy; v = numpy.arange(6).reshape(2, 3)[:, ::-1] * (1 + (rank == 0))",
            "rank 0 differs from ranks 1-3 in v (max difference 5)",
        ),
        ("v = {'a', 'b', ('c', 1)}", "the same on ranks 0-3 (1 part, {size})"),
        (
            "v = lambda x: x * (0.1 if rank == 1 else 0.2)",
            "the same on ranks 0-3 (1 part, {size})",
        ),
        (
            "def scaled(by): return lambda x: x * by\nv = scaled(0.5 + (rank == 1))",
            "rank 1 differs from ranks 0, 2-3 in v.by (max difference 1)",
        ),
        (
            "exec(f'def v(x): return x * {int(rank > 1)}.5')",
            "ranks 2-3 differ from ranks 0-1 in v",
        ),
        (
            "import enum; Part = enum.Enum('Part', 'first last')\n"
            "v = {Part.first: rank == 1, Part.last: rank != 1}",
            "rank 1 differs from ranks 0, 2-3 in v[<Part.first: 1>] (max difference 1), and in 1 "
            "more of 3 parts",
        ),
        (
            "v = torch.tensor([float('inf'), 2.0 + (rank == 1)])",
            "rank 1 differs from ranks 0, 2-3 in v (max difference 1)",
        ),
        (
            "v = torch.tensor([float('inf') if rank == 1 else 0.0, 2.0])",
            "rank 1 differs from ranks 0, 2-3 in v (1 number infinitely far apart)",
        ),
        (
            "v = [each / 2 + (rank == 1) for each in range(1000)]",
            "rank 1 differs from ranks 0, 2-3 in v (max difference 1)",
        ),
        ("v = 10**400 + rank", "ranks 0-3 all differ from each other in v"),
        (
            "v = 'x' * rank",
            "ranks 0-3 all differ from each other in v (str 0 characters on rank "
            "0; str 1 character on rank 1; str 2 characters on rank 2; str 3 characters on "
            "rank 3)",
        ),
    ],
)
def test_values_of_any_kind(cells: Cells, code: str, sentence: str) -> None:
    cells.run(code)
    [line] = _lines(cells, "v")
    if "(1 part, {size})" in sentence or "B)" in sentence:  # Python's own sizes change
        assert line.partition(",")[0] == f"v: {sentence}".partition(",")[0]
    else:
        assert line == f"v: {sentence}"


def test_names_that_some_ranks_have(cells: Cells) -> None:
    cells.run("only_some = 1", ranks=(1, 3))
    assert _lines(cells, "only_some", "nobody_has_it") == [
        "only_some: ranks 1, 3 have it, ranks 0, 2 do not; the same on ranks 1, 3 (1 part, 28 B)",
        "nobody_has_it: no rank has this name",
    ]


def test_random_states(cells: Cells) -> None:
    cells.run(
        "import random; random.seed(1); torch.manual_seed(1)\nimport numpy; numpy.random.seed(1)"
    )
    [line] = _lines(cells, random=True)
    assert line.startswith("random states: the same on ranks 0-3 (4 parts")
    cells.run("torch.manual_seed(rank == 1)")
    [line] = _lines(cells, random=True)
    assert line.startswith(
        "random states: rank 1 differs from ranks 0, 2-3 in random states['torch']"
    ), line


def test_sharded_tensors_are_said_to_be(cells: Cells) -> None:
    cells.run("""from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
mesh = init_device_mesh("cpu", (4,))
v = {"split": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]), "rest": torch.ones(2)}""")
    assert _lines(cells, "v")[0].endswith(
        "but for 1 part that is sharded: each rank has a piece of its own"
    )
    table = {row.name: row for row in cells.cluster.looks.names(["v"]).rows}
    assert table["v"].ranks == (0, 1, 2, 3)


def test_what_cannot_be_compared_is_named(cells: Cells) -> None:
    cells.run("import threading; v = {'lock': threading.Lock(), 'n': 1}")
    assert _lines(cells, "v")[0].endswith("but for v['lock'], which cannot be compared")
    cells.run("""class Bad:
    def state_dict(self):
        raise ValueError("never")
    def load_state_dict(self, state):
        pass
v = Bad()""")
    with pytest.raises(SkyError, match="rank 0 cannot compare v: ValueError: never"):
        _lines(cells, "rank", "v")
    cells.run("u = (each for each in range(3))")
    assert _lines(cells, "u") == ["u: generator on ranks 0-3, which cannot be compared"]
    [row] = cells.cluster.looks.names(["u"]).rows
    assert row.differ is None
    assert cells.cluster.looks.names(["u"]).notes == ()
    # A nested tensor has no shape. Neither value keeps the table from showing all others.
    cells.run("w = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])")
    names = cells.cluster.looks.names()
    assert {"v": ("Bad", ""), "w": ("torch.Tensor", "")}.items() <= {
        row.name: (row.type, row.shape) for row in names.rows
    }.items()
    cells.run("v = [1]; v.append(v)")
    assert _lines(cells, "v")[0].startswith("v: the same on ranks 0-3")


def test_a_large_value_is_compared_in_pages(cells: Cells) -> None:
    cells.run(
        "v = {n: torch.full((2,), float(n)) for n in range(4500)}\nif rank == 1: v[4400] += 1"
    )
    assert _lines(cells, "v") == [
        "v: rank 1 differs from ranks 0, 2-3 in v[4400] (max difference 1)"
    ]
    cells.run("v = torch.zeros(300_000)\nif rank == 3: v[::2] = 1")
    assert _lines(cells, "v") == [
        "v: rank 3 differs from ranks 0-2 in v (max difference at least 1)"
    ]


def test_while_a_run_is_going_on(cells: Cells) -> None:
    cells.run("v = 1")
    run = cells.start("print('begun', flush=True)\ntime.sleep(600)")
    try:
        until(lambda: any(rank.run for rank in cells.cluster.state.ranks))

        def is_refused() -> bool:
            try:
                _lines(cells, "v")
            except SkyError as error:
                return "busy with a run: compare when it is over" in str(error)
            return False

        until(is_refused)
        names = cells.cluster.looks.names(["v"])
        assert "a run is going on: values were not compared" in names.notes
        assert [(row.name, row.differ) for row in names.rows] == [("v", None)]
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()


def test_names_while_a_rank_keeps_the_interpreter_to_itself(cells: Cells) -> None:
    cells.run("v = 1")
    run = cells.start("print('begun', flush=True)\ntime.sleep(600)")
    pid = cells.cluster.state.ranks[2].pid
    assert pid
    try:
        until(lambda: all(rank.run for rank in cells.cluster.state.ranks))
        os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor() as user:
            asked = user.submit(cells.cluster.looks.names, ["v"])
            try:
                # Not the time that values may take which are looked into.
                names = asked.result(timeout=60)
            finally:
                os.kill(pid, signal.SIGCONT)
        assert "rank 2 does not answer" in names.notes
        assert [(row.name, row.ranks) for row in names.rows] == [("v", (0, 1, 3))]
    finally:
        cells.cluster.interrupt_run(run.id)
        run.follow()


def test_the_table_of_names(cells: Cells) -> None:
    cells.run("""t1 = torch.zeros(3, 4)
t2 = "same"
t3 = rank
t4 = torch.zeros(2 + rank // 2)
t5 = torch.zeros(100_000)
if rank == 1: t6 = None""")
    names = cells.cluster.looks.names()
    rows = [row for row in names.rows if row.name in ("t1", "t2", "t3", "t4", "t5", "t6")]
    assert [
        (row.name, row.ranks, row.type, row.shape, row.differ, row.is_everywhere) for row in rows
    ] == [
        ("t1", (0, 1, 2, 3), "torch.Tensor", "[3, 4]", False, True),
        ("t2", (0, 1, 2, 3), "str", "4 characters", False, True),
        ("t3", (0, 1, 2, 3), "int", "", True, True),
        ("t4", (0, 1), "torch.Tensor", "[2]", False, True),
        ("t4", (2, 3), "torch.Tensor", "[3]", False, True),
        ("t5", (0, 1, 2, 3), "torch.Tensor", "[100000]", None, True),
        ("t6", (1,), "NoneType", "", False, False),
    ]
    assert {row.name for row in names.rows}.isdisjoint({"In", "Out", "get_ipython", "torch", "os"})
    assert cells.cluster.looks.names(["t1", "no_such_name"]).missing == ("no_such_name",)
