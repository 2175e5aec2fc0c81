"""Plugins that raise, end the process, or hang: a start says so, and leaves nothing behind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.conftest import start
from tests.faults import hooks
from tests.faults.experience import Experience
from tests.faults.scenes.scene import Scene, feel

_FORM = 2.0  # seconds for ranks to enter their group; a minute where nothing else is said


def _with(hook: Callable[[object], Iterator[None]], timeouts: Timeouts) -> Callable[[], Experience]:
    """Start a cluster with a plugin, and then one without it."""

    def play() -> Experience:
        name = f"plugin-{uuid.uuid4().hex[:8]}"
        plugin = sky.Plugin("licensed", around_app=hook)
        spec, runtime_env = assemble(ClusterSpec(name=name, nodes=2), [plugin])

        def told() -> str:
            try:
                Cluster.start(spec, Local(), runtime_env, timeouts=timeouts)
            except SkyError as error:
                return str(error)
            raise AssertionError("it has started")

        def go_on() -> None:
            cells = start(nodes=2, framework=False)
            cells.run("pass")
            cells.cluster.down()

        felt = feel(lambda: None, told, go_on)
        assert registry.find(name) is None
        return felt

    return play


SCENES = (
    Scene(
        "a plugin that raises: a start says so, and one without it runs",
        _with(hooks.raises, Timeouts()),
        "could not join the group: .*no licence server",
        known=2.0,
        usable=4.0,
    ),
    Scene(
        "a plugin that ends the process of a rank: a start says what it said",
        _with(hooks.ends, Timeouts()),
        r"its process ended with status 3 \(no licence file\)",
        known=2.0,
        usable=4.0,
    ),
    Scene(
        f"a plugin that hangs, with {_FORM:.0f} s to form the group",
        _with(hooks.hangs, Timeouts(form=_FORM, stop=1)),
        "ranks 0-1 did not enter the process group within 2 s: a hook of licensed may hang there",
        known=_FORM + 3,
        usable=_FORM + 5,
    ),
)
