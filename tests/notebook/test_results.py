"""What ranks are asked for, and what names are bound to."""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.cells.results import requested_names, select, select_requested

VALUES = {1: {"loss": 10, "model": "a"}, 3: {"loss": 30}}


@pytest.mark.parametrize(
    ("out", "gather", "requested"),
    [
        ((), (), {}),
        (("model",), (), {1: ["model"]}),
        ((), ("loss",), {1: ["loss"], 3: ["loss"]}),
        (("model", "loss"), ("loss",), {1: ["model", "loss"], 3: ["loss"]}),
    ],
)
def test_only_what_is_gathered_is_asked_of_every_rank(
    out: tuple[str, ...], gather: tuple[str, ...], requested: dict[int, list[str]]
) -> None:
    assert requested_names((1, 3), out, gather) == requested


def test_names_are_bound_to_the_first_ranks_value_or_to_a_list() -> None:
    bound = {"model": "a", "loss": [10, 30]}
    assert select(VALUES, (1, 3), ("model", "loss"), ("loss",)) == bound
    assert select(VALUES, (1,), ("loss",), ("loss",)) == {"loss": [10]}


def test_a_state_dictionary_is_bound_to_a_name_of_its_own() -> None:
    values = {0: {"model:state": {"weight": 1}}, 1: {"model:state": {"weight": 2}}}
    assert select(values, (0, 1), ("model:state",), ()) == {"model_state": {"weight": 1}}
    both = [{"weight": 1}, {"weight": 2}]
    assert select(values, (0, 1), ("model:state",), ("model:state",)) == {"model_state": both}


def test_another_kernel_binds_the_same() -> None:
    requested = requested_names((1, 3), ("model",), ("loss",))
    task = Task(ranks=(1, 3), values=requested, gathered=("loss",))
    assert select_requested(VALUES, task) == {"model": "a", "loss": [10, 30]}
    assert select_requested({}, Task(ranks=(1, 3))) == {}
