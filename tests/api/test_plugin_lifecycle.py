"""Plugins as a user writes them, and what a rank does with them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.display.description import describe
from jupyter_sky.api.plugin import decorators_of, transform_image
from jupyter_sky.api.plugin_lifecycle import ClientLifecycle, PluginLifecycle
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.serialization import pickling

events: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    events.clear()


def noted(info: sky.InstanceInfo, what: str) -> Iterator[None]:
    events.append(f"{what} begins on {info.rank}")
    try:
        yield
    finally:
        events.append(f"{what} ends")


@contextmanager
def managed(info: sky.InstanceInfo) -> Iterator[None]:
    yield from noted(info, "managed")


def fails(info: sky.InstanceInfo) -> Iterator[None]:
    raise OSError("no")
    yield


def fails_at_the_end(info: sky.InstanceInfo) -> Iterator[None]:
    yield
    raise OSError("no")


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


A = sky.Plugin(
    "a",
    around_process=partial(noted, what="a process"),
    around_app=partial(noted, what="a app"),
    decorate=plain,
    preload=("json", "csv"),
)
B = sky.Plugin("b", around_app=managed, preload=("csv",))


def test_a_rank_enters_and_leaves_plugins_in_order(as_rank: Callable[..., None]) -> None:
    as_rank(3)
    lifecycle = pickle.loads(pickle.dumps(PluginLifecycle([A, B])))
    lifecycle.enter_process()
    lifecycle.enter_app()
    lifecycle.exit_app()
    as_rank(2, generation=2)
    lifecycle.enter_app()
    lifecycle.exit_app()
    lifecycle.exit_app()
    lifecycle.exit_process()
    assert events == [
        "a process begins on 3",
        *("a app begins on 3", "managed begins on 3", "managed ends", "a app ends"),
        *("a app begins on 2", "managed begins on 2", "managed ends", "a app ends"),
        "a process ends",
    ]


def test_entering_again_leaves_what_was_entered(as_rank: Callable[..., None]) -> None:
    as_rank(0)
    lifecycle = PluginLifecycle([B])
    lifecycle.enter_app()
    lifecycle.enter_app()
    assert events == ["managed begins on 0", "managed ends", "managed begins on 0"]
    # Otherwise the collector would close it, in the middle of some later test.
    lifecycle.exit_app()


def test_an_error_names_the_plugin_and_leaves_the_others(as_rank: Callable[..., None]) -> None:
    as_rank(0)
    lifecycle = PluginLifecycle([B, sky.Plugin("bad", around_app=fails)])
    with pytest.raises(OSError, match="no") as raised:
        lifecycle.enter_app()
    assert raised.value.__notes__ == ["in plugin 'bad', around_app"]
    assert events == ["managed begins on 0", "managed ends"]


def test_an_error_at_the_end_names_the_plugin_too(as_rank: Callable[..., None]) -> None:
    as_rank(0)
    lifecycle = PluginLifecycle([B, sky.Plugin("bad", around_process=fails_at_the_end)])
    lifecycle.enter_process()
    with pytest.raises(OSError, match="no") as raised:
        lifecycle.exit_process()
    assert raised.value.__notes__ == ["in plugin 'bad', around_process"]
    lifecycle.exit_process()


def test_an_error_of_the_users_code_names_no_plugin(as_rank: Callable[..., None]) -> None:
    as_rank(0)
    info = sky.instance_info()
    assert info is not None
    with pytest.raises(KeyError) as raised, PluginLifecycle([A, B]).app(info):
        raise KeyError("why")
    assert not hasattr(raised.value, "__notes__")


def test_a_function_without_yield_is_one_sentence(as_rank: Callable[..., None]) -> None:
    as_rank(0)
    with pytest.raises(sky.UsageError, match="put a `yield`"):
        PluginLifecycle([sky.Plugin("p", around_app=lambda info: None)]).enter_app()  # type: ignore[arg-type, return-value]


def test_outside_a_cluster_there_is_nothing_to_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTE_POOL", raising=False)
    with pytest.raises(sky.SkyError, match="COMPUTE_POOL is not set"):
        PluginLifecycle([A]).enter_process()


def test_what_plugins_say_together() -> None:
    assert decorators_of([A, B]) == (plain,)
    assert PluginLifecycle([A, B]).preload == ("json", "csv")


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        ([sky.Plugin("wandb", around_app=fails)], ""),
        ([sky.Plugin("own", around_app=fails, connects="jax")], ", group formed with jax 0.7"),
        ([A, sky.plugins.torch()], ", group formed with torch"),
    ],
)
def test_a_cluster_says_what_connects_its_ranks(plugins: list[sky.Plugin], said: str) -> None:
    _, runtime_env = assemble(ClusterSpec("two"), plugins)
    state = SimpleNamespace(nodes=[SimpleNamespace(gpu=None)] * 2, versions={"jax": "0.7"})
    cluster: Any = SimpleNamespace(
        state=state,
        all_ranks=(0, 1),
        provider=SimpleNamespace(name="local"),
        runtime_env=runtime_env,
        price=None,
    )
    assert describe(cluster) == f"2 local nodes, 2 ranks on CPU{said}"


def test_a_plugin_of_a_cell_travels(
    as_rank: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def local(info: sky.InstanceInfo) -> Iterator[None]:
        os.environ["ENTERED_ON"] = str(info.rank)
        yield
        os.environ["LEFT_ON"] = str(info.rank)

    as_rank(1)
    monkeypatch.setenv("ENTERED_ON", "")
    monkeypatch.setenv("LEFT_ON", "")
    pickled = pickling.dump(PluginLifecycle([sky.Plugin("cell", around_app=local)]))
    lifecycle = pickling.load(pickled.stream, pickled.buffers)
    assert lifecycle.plugins[0].around_app is not local
    lifecycle.enter_app()
    assert (os.environ["ENTERED_ON"], os.environ["LEFT_ON"]) == ("1", "")
    lifecycle.exit_app()
    assert os.environ["LEFT_ON"] == "1"


def test_plugins_transform_the_image_in_order() -> None:
    def adds(name: str) -> sky.Plugin:
        return sky.Plugin(name, transform=lambda image, _: replace(image, pip=[*image.pip, name]))

    image = transform_image([adds("a"), B, adds("b")], sky.Image(pip=["x"]), cluster=None)
    assert image.pip == ("x", "a", "b")
    with pytest.raises(sky.UsageError, match="transform returned NoneType; return the image"):
        transform_image([sky.Plugin("p", transform=lambda *_: None)], image, None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("plugins", "instead"),
    [
        ([sky.plugins.torch], r"write torch\(\)"),
        (sky.plugins.torch(), "plugins is a list"),
        (["torch"], r"'torch', which is not a plugin: write sky\.plugins\.torch\(\)"),
        ([None], "None, which is not a plugin: leave it out"),
        ([sky.plugins.torch(), sky.plugins.torch()], "'torch' twice"),
        (None, "plugins is a list"),
        ("torch", "plugins is a list"),
    ],
)
def test_wrong_plugins_say_what_to_type(plugins: Any, instead: str) -> None:
    with pytest.raises(sky.UsageError, match=instead):
        PluginLifecycle(plugins)


@pytest.mark.parametrize("first", [sky.plugins.torch, sky.plugins.accelerate])
def test_two_libraries_cannot_both_connect_ranks(
    as_rank: Callable[..., None], first: Callable[[], sky.Plugin]
) -> None:
    plugins = [first(), sky.plugins.jax()]
    said = "'jax', and only one of them can connect 4 ranks: leave the other out, or use a single"
    two_nodes = ClusterSpec("c", nodes=2, accelerator=sky.accelerators.L4(count=2))
    for several in (ClusterSpec("c", procs_per_node=4), two_nodes):
        with pytest.raises(sky.UsageError, match=said):
            assemble(several, plugins)
        assemble(several, [sky.plugins.torch(), sky.plugins.accelerate()])
    assemble(ClusterSpec("c"), plugins)  # which may turn out to have several
    as_rank(0, 4)
    with pytest.raises(sky.UsageError, match=said):
        PluginLifecycle(plugins).enter_app()


def test_a_wrong_plugin_says_what_to_type() -> None:
    with pytest.raises(sky.UsageError, match="a plugin needs a name"):
        sky.Plugin("")
    with pytest.raises(sky.UsageError, match="around_app='x' is not a function"):
        sky.Plugin("p", around_app="x")  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match=r'write preload=\("torch",\)'):
        sky.Plugin("p", preload="torch")  # type: ignore[arg-type]


def test_the_notebook_enters_and_leaves_plugins_in_order() -> None:
    def around(pool: Any, cluster: Any, name: str) -> Iterator[str]:
        events.append(f"{name} begins with {pool} and {cluster}")
        yield name
        events.append(f"{name} ends")

    plugins = [
        sky.Plugin.create(each).with_around_client(partial(around, name=each)) for each in "ab"
    ]
    life = ClientLifecycle([*plugins, A])
    life.enter("pool", "cluster")
    assert life.given("b") == "b"
    life.leave()
    life.leave()
    assert life.given("b") is None
    begin, end = "{} begins with pool and cluster", "{} ends"
    assert events == [begin.format("a"), begin.format("b"), end.format("b"), end.format("a")]


def test_a_plugin_that_fails_in_the_notebook_leaves_those_before_it() -> None:
    def around(pool: Any, cluster: Any) -> Iterator[None]:
        try:
            yield
        finally:
            events.append("left")

    def failing(pool: Any, cluster: Any) -> Iterator[None]:
        raise OSError("no")
        yield

    life = ClientLifecycle(
        [sky.Plugin("a", around_client=around), sky.Plugin("b", around_client=failing)]
    )
    with pytest.raises(OSError, match="no") as error:
        life.enter(None, None)
    assert error.value.__notes__ == ["in plugin 'b', around_client"]
    assert events == ["left"]


def test_what_a_plugin_does_in_the_notebook_is_not_sent_to_the_ranks() -> None:
    unsendable = (each for each in ())
    plugin = sky.Plugin("a", around_client=lambda pool, cluster: unsendable)
    assemble(ClusterSpec(name="c", nodes=1), [plugin])
