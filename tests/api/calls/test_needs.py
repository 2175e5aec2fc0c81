"""Names that calls need: a rank goes on with what it has changed until the name is assigned."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupyter_sky as sky
from jupyter_sky.cluster.calls.batch import CallResult
from tests.api.calls.test_calls import of_notebook, wait_for
from tests.installed import skip_without
from tests.waiting import PATIENCE, until

SOURCE = """
class Model:
    steps = 0
    def __init__(self):
        self.weights = [0.5]
history, model, scale = [], Model(), 1
def add():
    history.append(scale)
    return len(history)
def step():
    Model.steps += 1
    model.weights[0] += 1
    return Model.steps, model.weights[0], add()
"""


def test_what_is_assigned_again_is_sent_again_also_where_it_is_equal(pool: sky.ComputePool) -> None:
    with of_notebook(SOURCE) as names:
        step = sky.compute(names["step"])
        assert [step() @ pool for _ in range(2)] == [[(n, n + 0.5, n)] * 2 for n in (1, 2)]
        names["history"] = []
        assert step() @ pool == [(3, 3.5, 1)] * 2
        names["model"] = names["Model"]()
        assert step() @ pool == [(4, 1.5, 2)] * 2
        # In the meantime, lists may come and go at the same address.
        names["history"] = []
        names["history"] = []
        assert (step() > pool).result(PATIENCE) == (5, 2.5, 1)
        exec("class Model:\n    steps = 0\n    def __init__(self): self.weights = [0.5]", names)
        assert (step() & step()) >> pool == ((1, 3.5, 2), (1, 2.5, 1))


def test_what_is_bound_to_the_same_object_stays_as_ranks_have_changed_it(
    pool: sky.ComputePool,
) -> None:
    with of_notebook(SOURCE) as names:
        add = sky.compute(names["add"])
        assert add() @ pool == [1, 1]
        kept = names.pop("history")  # as a script does with what ranks have of their own
        names["scale"] = 2
        assert sky.compute(len)([]) @ pool == [0, 0]
        names["history"] = kept
        assert add() @ pool == [2, 2]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: add() @ pool, range(4)))
        assert sorted(found) == [[n, n] for n in range(3, 7)]


@sky.compute
def overrun(path: Path) -> None:
    """Go on when the time is over, until the whole run is stopped."""
    with contextlib.suppress(KeyboardInterrupt):
        wait_for.local(path)
    wait_for.local(path)


def test_what_ranks_have_changed_is_reset_by_a_function_there(pool: sky.ComputePool) -> None:
    with of_notebook(f"{SOURCE}\ndef reset(): history.clear()") as names:
        add, reset = sky.compute(names["add"]), sky.compute(names["reset"])
        assert add() @ pool == [1, 1]
        names["history"].clear()  # it is empty here: nothing tells that it was to be reset
        assert add() @ pool == [2, 2]
        reset() @ pool
        assert add() @ pool == [1, 1]


def test_calls_that_go_on_in_another_run_find_what_their_ranks_have_changed(
    pool: sky.ComputePool, tmp_path: Path
) -> None:
    with of_notebook(SOURCE) as names:
        add = sky.compute(names["add"])
        late = overrun(tmp_path / "never").with_timeout(0.1)
        calls = [add(), add(), late, late, add(), add()]
        events: list[Any] = []
        assert pool._batches is not None
        batch, _ = pool._batches.pack(calls, events.append)
        pool._batches.submit(batch)
        until(lambda: sum(isinstance(each, CallResult) for each in events) == len(calls))
        found = {each.number: each for each in events if isinstance(each, CallResult)}
        assert all("longer" in str(found[n].failure) for n in (2, 3))
        assert [pool._batches.value(found[n], calls) for n in (0, 1, 4, 5)] == [1, 1, 2, 2]


LINEAR = """
import torch
def made():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    return model
model = made()
def train():
    with torch.no_grad():
        model.weight += 1
    return model.weight.item()
"""


def test_a_model_that_is_made_anew_begins_anew(pool: sky.ComputePool) -> None:
    skip_without("torch")
    with of_notebook(LINEAR) as names:
        train = sky.compute(names["train"])
        assert [train() @ pool for _ in range(2)] == [[2.0, 2.0], [3.0, 3.0]]
        names["model"] = names["made"]()
        assert train() @ pool == [2.0, 2.0]
