"""Many small tasks of a notebook on four processes: joblib and scikit-learn over each engine.

``python -m tests.benchmarks.cases.workloads.small_tasks ENGINE`` measures one, in its own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from tests.benchmarks.measure import Base, Row, seconds
from tests.benchmarks.notebook import ROOT

_RANKS = 4
_TASKS = 2000
_TASK = 0.05  # seconds
_WITHIN = 400.0

_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PACKAGES = {"joblib's loky": "joblib", "Dask alone": "distributed", "Ray": "ray"}


def small_tasks(peers: bool) -> list[Row]:
    """Measure tasks and a grid search; both begin with workers that have imported what they need.

    The tasks sleep, so that they take the same on however few processors.
    """
    ours = _measure("jupyter_sky")
    others: dict[str, dict[str, float]] = {}
    missing: dict[str, str] = {}
    for name, package in _PACKAGES.items() if peers else ():
        if not find_spec(package):
            missing[name] = "not installed"
            continue
        try:
            others[name] = _measure(name)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            missing[name] = "did not come to its end"
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
            peers={**{name: found[key] for name, found in others.items()}, **missing},
        )
        for what, key in rows
    ]


def _measure(engine: str) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, engine]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **_THREADS},
        check=True,
        capture_output=True,
        text=True,
        timeout=_WITHIN,
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _times(engine: str) -> dict[str, float]:
    import joblib

    begun = time.monotonic()
    with _ENGINES[engine]():
        # On each process what it imports for the search; this is not counted below.
        joblib.Parallel(n_jobs=_RANKS, batch_size=1)(
            joblib.delayed(_prepared)() for _ in range(4 * _RANKS)
        )
        started = time.monotonic() - begun
        tasks = seconds(
            lambda: joblib.Parallel(n_jobs=_RANKS)(
                joblib.delayed(time.sleep)(_TASK) for _ in range(_TASKS)
            )
        )
        return {"start": started, "tasks": tasks, "search": seconds(_search)}


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
    print(json.dumps(_times(sys.argv[1])))
