"""JAX over real processes, where JAX is installed."""

from __future__ import annotations

import importlib.machinery
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.plugin_lifecycle import PluginLifecycle
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.errors import UsageError
from jupyter_sky.serialization.process.rank_variables import for_others
from tests.api.conftest import topology
from tests.cluster.cells import start
from tests.installed import skip_without


def one_mesh(join: Callable[[int], None]) -> dict[str, Any]:
    import sys

    os.environ["JAX_PLATFORMS"] = "cpu"
    join(1)
    life = PluginLifecycle([sky.plugins.jax(), sky.plugins.keras(backend="jax")])
    life.enter_process()
    unimported = "jax" not in sys.modules
    life.enter_app()
    import jax

    with pytest.raises(UsageError, match=r"connected already, .*leave `jax.distributed.initialize"):
        jax.distributed.initialize()
    seen = {
        "unimported": unimported,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "rank": jax.process_index(),
        "variables": [os.environ["JAX_PROCESS_ID"], os.environ["JAX_NUM_PROCESSES"]],
        "keras": os.environ["KERAS_BACKEND"],
        "those of scripts": [name for name in for_others() if name.startswith("JAX_P")],
    }
    life.exit_app()
    life.exit_process()
    seen["clean"] = "JAX_PROCESS_ID" not in os.environ and "KERAS_BACKEND" not in os.environ
    return seen


USED = ("numpy", "pandas", "sklearn", "matplotlib.pyplot")
"""What Keras imports of others, which is most of the two seconds that it takes."""


def test_all_ranks_are_one_mesh(on_ranks: Any) -> None:
    skip_without("jax")
    for rank, seen in enumerate(on_ranks(one_mesh, 2, imported=USED)):
        assert seen == {
            "unimported": True,
            "devices": 2,
            "processes": 2,
            "rank": rank,
            "variables": [str(rank), "2"],
            "keras": "jax",
            "those of scripts": ["JAX_PLATFORMS"],
            "clean": True,
        }


def test_a_missing_backend_of_keras_and_deepspeed_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPUTE_POOL", topology(0, 2))
    for name in ("tensorflow", "deepspeed"):
        monkeypatch.setitem(sys.modules, name, None)
    skip_without("keras")
    skip_without("accelerate")
    said = "tensorflow is not installed on this node: pip install tensorflow here, or add `--pip"
    with pytest.raises(sky.SkyError, match=said):
        PluginLifecycle([sky.plugins.keras("tensorflow")]).enter_process()
    life = PluginLifecycle([sky.plugins.accelerate(config={"deepspeed": {"zero_stage": 2}})])
    with pytest.raises(sky.SkyError, match="deepspeed is not installed on this node: pip install"):
        life.enter_app()


def test_what_accelerate_leaves_out_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_without("accelerate")
    monkeypatch.setenv("COMPUTE_POOL", topology(0, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    deepspeed = types.ModuleType("deepspeed")
    deepspeed.__spec__ = importlib.machinery.ModuleSpec("deepspeed", None)
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    configs: dict[str, Any] = {"fsdp": {"version": 2}, "deepspeed": {"zero_stage": 2}}
    for name, settings in configs.items():
        life = PluginLifecycle([sky.plugins.accelerate({name: settings})])  # type: ignore[misc]
        with pytest.raises(UsageError, match=rf'config\["{name}"\] needs a GPU for each rank, and'):
            life.enter_app()


JOINED = """
import jax, os, sys, threading, time
from jax.experimental.multihost_utils import process_allgather

def gather():
    return process_allgather(jax.numpy.ones(1)).sum().item()

def tell_once_waiting():
    # Once the main thread does not get on with its collective.
    stays, at = 0, None
    while stays < 50:
        frame = sys._current_frames()[threading.main_thread().ident]
        now = frame.f_code, frame.f_lasti
        stays, at = stays + 1 if now == at else 0, now
        time.sleep(0.01)
    print("waits", flush=True)

rank = jax.process_index()
gathered = gather()
"""


@pytest.mark.parametrize("ends", ["by Stop", "by an error of a rank"])
def test_ranks_in_a_collective_that_ends_early_keep_their_variables(ends: str) -> None:
    skip_without("jax")
    cells = start(2, framework=sky.plugins.jax())
    try:
        cells.run(JOINED)
        pids = cells.ask("os.getpid()")
        assert cells.ask("gathered") == [2.0] * 2
        if ends == "by Stop":
            run = cells.start(
                "threading.Thread(target=tell_once_waiting).start()\n"
                "time.sleep(600) if rank else gather()"
            )
            presses = iter([signal.SIGINT])  # another one would end the ranks
            with pytest.raises(Interrupted):
                run.follow(lambda _: [os.kill(os.getpid(), each) for each in presses])
        else:
            with pytest.raises(ZeroDivisionError):
                cells.run("1 / 0 if rank else gather()")
        assert cells.ask("(rank, os.getpid())") == [*enumerate(pids)]
        with pytest.raises(ValueError, match="Gloo"):
            cells.run("gather()")
        assert "`%sky restart` connects new processes" in cells.text("stderr", 0)
        assert cells.ask("rank") == [0, 1]
    finally:
        cells.cluster.down()


def test_missing_jax_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTE_POOL", topology(0, 2))
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(sky.SkyError, match="jax is not installed on this node: pip install jax"):
        PluginLifecycle([sky.plugins.jax()]).enter_app()
