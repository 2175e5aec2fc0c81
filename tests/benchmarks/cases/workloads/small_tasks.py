"""Many small tasks of a notebook on four processes: joblib and scikit-learn over each engine.

``python -m tests.benchmarks.cases.workloads.small_tasks ENGINE`` measures one, in its own process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from tests.benchmarks.measure import Base, Row, seconds
from tests.benchmarks.notebook import ROOT

_RANKS = 4
_TASKS = 2000
_TASK = 0.05  # seconds
_ROUNDS = 3
_WITHIN = 400.0
_MARK = "measured: "
_OURS = "jupyter_sky"

_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PACKAGES = {"joblib's loky": "joblib", "Dask alone": "distributed", "Ray": "ray"}


def small_tasks(peers: bool) -> list[Row]:
    """Measure tasks and a grid search; both begin with workers that have imported what they need.

    All engines are up at once and work in turns, one after the other: what else the machine does
    meets each of them. The tasks sleep, so that they take the same on however few processors.
    """
    missing: dict[str, str] = {}
    names = [_OURS]
    for name, package in _PACKAGES.items() if peers else ():
        if find_spec(package):
            names.append(name)
        else:
            missing[name] = "not installed"
    engines: dict[str, _Engine] = {}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    try:
        for name in names:
            engines[name] = _Engine(name)
            found[name]["start"] = [engines[name].answer()]
        for turn, what in itertools.product(range(_ROUNDS), ("tasks", "search")):
            order = list(engines)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                try:
                    found[name].setdefault(what, []).append(engines[name].measure(what))
                except EngineEnded:
                    if name == _OURS:
                        raise
                    engines.pop(name).close()
                    missing[name] = "did not come to its end"
    finally:
        for engine in engines.values():
            engine.close()
    medians = {
        name: {what: statistics.median(times) for what, times in found[name].items()}
        for name in engines
    }
    ours = medians.pop(_OURS)
    rows = [
        ("2,000 tasks of 50 ms, joblib on 4 ranks", "tasks"),
        ("grid search of 150 fits on 4 ranks", "search"),
        ("start of the workers", "start"),
    ]
    ideal = Base("none but the tasks", _TASKS * _TASK / _RANKS)
    return [
        Row(
            what,
            ours[key],
            "s",
            base=ideal if key == "tasks" else None,
            peers={**{name: times[key] for name, times in medians.items()}, **missing},
        )
        for what, key in rows
    ]


class EngineEnded(Exception):
    """An engine's process has ended, or takes too long."""


class _Engine:
    """An engine in a process of its own, which measures what it is told to."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, name],
            cwd=ROOT,
            env={**os.environ, **_THREADS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, what: str) -> float:
        """Return the seconds that tasks or search take."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
        except OSError:
            raise EngineEnded from None
        return self.answer()

    def answer(self) -> float:
        """Return what it says next; engines may print other things."""
        assert self._process.stdout
        limit = threading.Timer(_WITHIN, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:
                if line.startswith(_MARK):
                    return float(line.removeprefix(_MARK))
        finally:
            limit.cancel()
        raise EngineEnded

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(engine: str) -> None:
    import joblib

    def say(took: float) -> None:
        print(f"{_MARK}{took}", flush=True)

    begun = time.monotonic()
    with _ENGINES[engine]():
        # On each process what it imports for the search; this is not counted below.
        joblib.Parallel(n_jobs=_RANKS, batch_size=1)(
            joblib.delayed(_prepared)() for _ in range(4 * _RANKS)
        )
        say(time.monotonic() - begun)
        for what in sys.stdin:
            say(seconds(_search if what.strip() == "search" else _sleep))


def _sleep() -> None:
    import joblib

    joblib.Parallel(n_jobs=_RANKS)(joblib.delayed(time.sleep)(_TASK) for _ in range(_TASKS))


def _prepared() -> None:
    import sklearn.model_selection
    import sklearn.svm  # noqa: F401

    time.sleep(0.2)


def _search() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    grid = {"C": [10.0**n for n in range(-2, 4)], "gamma": [10.0**n for n in range(-6, -1)]}
    digits = load_digits()
    search = GridSearchCV(SVC(), grid, cv=5, n_jobs=_RANKS, refit=False)
    search.fit(digits.data[:600], digits.target[:600])
    assert len(search.cv_results_["params"]) * 5 == 150


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    import jupyter_sky as sky

    with sky.ComputePool(nodes=_RANKS, plugins=[sky.plugins.sklearn()]):
        yield


@contextlib.contextmanager
def _loky() -> Iterator[None]:
    import joblib

    with joblib.parallel_config(backend="loky", n_jobs=_RANKS):
        yield


@contextlib.contextmanager
def _dask() -> Iterator[None]:
    import joblib
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=_RANKS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        joblib.parallel_config(backend="dask", client=client),
    ):
        yield


@contextlib.contextmanager
def _ray() -> Iterator[None]:
    import joblib
    import ray
    from ray.util.joblib import register_ray

    ray.init(num_cpus=_RANKS, include_dashboard=False, log_to_driver=False)
    register_ray()
    try:
        with joblib.parallel_config(backend="ray", n_jobs=_RANKS):
            yield
    finally:
        ray.shutdown()


_ENGINES: dict[str, Callable[[], Any]] = {
    "jupyter_sky": _ours,
    "joblib's loky": _loky,
    "Dask alone": _dask,
    "Ray": _ray,
}

if __name__ == "__main__":
    _serve(sys.argv[1])
