"""What plugins add to the image, and to the environment of a rank."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.instance import _parse
from jupyter_sky.api.plugin_lifecycle import PluginLifecycle
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.providers.ssh.setup.packages.recipe import recipe_for
from tests.api.conftest import topology

WHEELS = "https://download.pytorch.org/whl"


def transformed(
    plugin: sky.Plugin, accelerator: Accelerator | str | None = None, image: sky.Image | None = None
) -> sky.Image:
    cluster = SimpleNamespace(spec=ClusterSpec("demo", accelerator=accelerator))
    assert plugin.transform is not None
    return plugin.transform(image or sky.Image(), cluster)


# -- torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "channel"),
    [
        (sky.accelerators.T4(), "cu128"),
        ("A100", "cu128"),
        ("a100-80gb:8", "cu128"),
        (sky.accelerators.MI300X(), "cpu"),
        ("trainium", "cpu"),
        (Accelerator("Mine", cuda="12.8"), "cu128"),
        (Accelerator("Mine"), "cpu"),
    ],
)
def test_the_accelerator_chooses_the_wheels(
    accelerator: Accelerator | str | None, channel: str
) -> None:
    image = transformed(sky.plugins.torch(), accelerator)
    assert image.pip == ("torch",)
    assert image.pip_indexes == (sky.PipIndex(f"{WHEELS}/{channel}", ("torch",)),)


def test_hosts_of_which_nothing_is_known_take_wheels_for_the_gpus_that_they_have() -> None:
    [index] = transformed(sky.plugins.torch()).pip_indexes
    assert (index.url, index.cuda_url) == (f"{WHEELS}/cpu", f"{WHEELS}/cu128")
    image = sky.Image(pip=["torch"], pip_indexes=[index])
    assert f"{WHEELS}/cpu" in recipe_for(image).project
    with_gpu = recipe_for(image, cuda=True).project
    assert f"{WHEELS}/cu128" in with_gpu
    assert f"{WHEELS}/cpu" not in with_gpu


@pytest.mark.parametrize(
    ("version", "accelerator", "channel"),
    [
        ("2.3.1", "A100", "cu121"),
        ("2.5.1", "A100", "cu124"),
        ("2.6.0", "A100", "cu126"),
        ("2.9.1", "A100", "cu128"),
        ("2.13.0", "A100", "cu130"),
        ("2.13.0", "V100", "cu126"),  # CUDA 13 has left it out
        ("2.9.1+cu126", "A100", "cu126"),
    ],
)
def test_the_version_chooses_among_the_builds_that_there_are_of_it(
    version: str, accelerator: str, channel: str
) -> None:
    notebook = sky.Image(pins=[f"torch=={version}", "torchvision==0.1"])
    [index] = transformed(sky.plugins.torch(), accelerator, notebook).pip_indexes
    assert index == sky.PipIndex(f"{WHEELS}/{channel}", ("torch", "torchvision"))
    [index] = transformed(sky.plugins.torch(version=version), accelerator).pip_indexes
    assert index.url == f"{WHEELS}/{channel}"


@pytest.mark.parametrize(
    ("versions", "pip"),
    [
        ({}, ["torch"]),
        ({"version": "2.3.0"}, ["torch==2.3.0"]),
        ({"version": ">=2.3"}, ["torch>=2.3"]),
        ({"version": ">=2.3,<2.6"}, ["torch>=2.3,<2.6"]),
        ({"version": "==2.3.*"}, ["torch==2.3.*"]),
        ({"version": "~=2.3"}, ["torch~=2.3"]),
        (
            {"vision": "latest", "audio": "latest"},
            ["torch", "torchvision", "torchaudio"],
        ),
        (
            {"version": "2.3.0", "vision": "0.18.0", "cuda": "cu124"},
            ["torch==2.3.0", "torchvision==0.18.0"],
        ),
        ({"version": "2.9.0.dev20250101+cu128"}, ["torch==2.9.0.dev20250101+cu128"]),
    ],
)
def test_versions_become_requirements(versions: dict[str, Any], pip: list[str]) -> None:
    image = transformed(sky.plugins.torch(**versions), "A100")
    assert image.pip == tuple(pip)
    (index,) = image.pip_indexes
    assert isinstance(index, sky.PipIndex)
    assert versions.get("cuda", "") in index.url
    assert [name.split("=")[0].rstrip("<>~") for name in pip] == list(index.packages)


def test_what_the_image_has_stays_and_is_not_doubled() -> None:
    mine = sky.Image(pip=["numpy", "Torch==2.5.0"], pip_indexes=["https://mine/simple"])
    image = transformed(sky.plugins.torch(vision="latest"), image=mine)
    assert image.pip == ("numpy", "Torch==2.5.0", "torchvision")
    assert len(image.pip_indexes) == 2
    assert transformed(sky.plugins.torch(vision="latest"), image=image) == image
    # A version of each: pip says what contradicts what.
    assert transformed(sky.plugins.torch(version="2.3.0"), image=mine).pip[-1] == "torch==2.3.0"


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"backend": "mpi"}, '"nccl", "gloo"'),
        ({"cuda": "12.8"}, 'cuda="cu128"'),
        ({"cuda": "cpu"}, 'cuda="cu128"'),
        ({"version": "newest"}, "not a version of torch"),
        ({"version": 2.3}, "not a version of torch"),
        ({"version": "2.3 --index-url x"}, "not a version of torch"),
        ({"vision": "> 1; x"}, "not a version of torchvision"),
        ({"deadline": 0}, "deadline=60"),
    ],
)
def test_wrong_options_say_what_to_type(options: dict[str, Any], instead: str) -> None:
    with pytest.raises(sky.UsageError) as raised:
        sky.plugins.torch(**options)
    assert instead in str(raised.value)


def test_wheels_that_a_gpu_is_too_old_for_are_refused() -> None:
    with pytest.raises(sky.UsageError, match=r"cu128 do not run on K80, .* CUDA up to 11.8"):
        transformed(sky.plugins.torch(), "K80")
    assert transformed(sky.plugins.torch(cuda="cu118"), "K80").pip == ("torch",)
    with pytest.raises(sky.UsageError, match="did you mean"):
        transformed(sky.plugins.torch(), "A1000")


# -- the others ------------------------------------------------------------------------------------


def test_other_frameworks() -> None:
    assert transformed(sky.plugins.jax()).pip == ("jax",)
    assert transformed(sky.plugins.jax(), "H100").pip == ("jax[cuda12]",)
    assert transformed(sky.plugins.jax(version="0.5.0"), "H100").pip == ("jax[cuda12]==0.5.0",)
    assert transformed(sky.plugins.jax(), "MI300X").pip == ("jax",)
    keras = transformed(sky.plugins.keras(backend="jax"), image=sky.Image(env={"A": "1"}))
    assert keras.pip == ("keras",)
    assert keras.env == {"A": "1", "KERAS_BACKEND": "jax"}
    assert transformed(sky.plugins.huggingface()).pip == ("transformers", "datasets", "tokenizers")
    dask = (f"distributed=={version('distributed')}", "bokeh")  # the notebook's own version
    assert transformed(sky.plugins.dask()).pip == dask
    assert transformed(sky.plugins.dask(version="2026.1.0")).pip[0] == "distributed==2026.1.0"
    assert transformed(sky.plugins.joblib()).pip == ("joblib", *dask)
    assert transformed(sky.plugins.sklearn(version="1.5.0")).pip == (
        "scikit-learn==1.5.0",
        "joblib",
        *dask,
    )
    with pytest.raises(sky.UsageError, match='"jax", "torch" or "tensorflow"'):
        sky.plugins.keras(backend="theano")  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match='cuda="cuda12"'):
        sky.plugins.jax(cuda="cu128")
    with pytest.raises(sky.UsageError, match="token is empty"):
        sky.plugins.huggingface(token=" ")


def test_a_token_is_in_the_rank_and_nowhere_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTE_POOL", topology())
    monkeypatch.delenv("HF_TOKEN", raising=False)
    plugin = sky.plugins.huggingface(token="hf_secret")
    life = pickle.loads(pickle.dumps(PluginLifecycle([plugin])))
    life.enter_process()
    assert os.environ["HF_TOKEN"] == "hf_secret"
    life.exit_process()
    assert "HF_TOKEN" not in os.environ
    image = transformed(plugin)
    for shown in (plugin, [plugin], life, life.plugins, image, image.env, vars(plugin)):
        assert "hf_secret" not in repr(shown)


def test_ranks_share_the_processors_of_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = len(os.sched_getaffinity(0))
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    for ranks in (1, processors, 4 * processors):
        monkeypatch.setenv("COMPUTE_POOL", topology(local_world_size=ranks))
        for plugin in (sky.plugins.joblib(), sky.plugins.sklearn()):
            life = PluginLifecycle([plugin])
            life.enter_process()
            assert os.environ["LOKY_MAX_CPU_COUNT"] == str(max(1, processors // ranks))
            life.exit_process()
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "7")
    assert sky.plugins.joblib().around_process is not None
    with sky.plugins.joblib().around_process(_parse(topology())):  # type: ignore[union-attr, misc]
        assert os.environ["LOKY_MAX_CPU_COUNT"] == "7"


# -- the names -------------------------------------------------------------------------------------


def test_functions_keep_their_names_when_their_files_are_imported() -> None:
    script = """
import sys
import jupyter_sky.plugins.torch, jupyter_sky.plugins.jax
from jupyter_sky.plugins.keras import keras
from jupyter_sky import plugins
import jupyter_sky as sky
for name in plugins.__all__:
    assert callable(getattr(plugins, name)), name
assert sky.plugins.torch().name == "torch"
assert sky.plugins.keras is keras
print(*sys.modules)
"""
    modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {"torch", "jax", "keras", "joblib", "sklearn", "transformers"} & set(modules)
