"""A cluster's start in the background, and the cells that show how it goes."""

from __future__ import annotations

import _thread
import io
import socket
import subprocess
import sys
import threading
from typing import cast

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import NameTaken, SkyError
from jupyter_sky.notebook.cells import cluster_start
from jupyter_sky.notebook.cells.cluster_start import ClusterStart, Started
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.spec import ClusterSpec
from tests.notebook.conftest import Notebook

LIMIT = 60.0

STARTED = cast(Started, object())


def adopt(started: Started | None) -> Cluster:
    raise AssertionError("nobody waits for the cluster")


class Screen(io.StringIO):
    """Standard error, which says when there is something on it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_text = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        self.has_text.set()
        return written


def test_a_cell_that_was_interrupted_shows_nothing_more_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, interrupted = Screen(), threading.Event()
    monkeypatch.setattr(sys, "stderr", screen)

    def start(say: Progress) -> Started:
        assert screen.has_text.wait(LIMIT)
        _thread.interrupt_main()
        assert interrupted.wait(LIMIT)
        say("installing packages")
        return STARTED

    begun = ClusterStart("later", start, adopt)
    with pytest.raises(KeyboardInterrupt):
        begun.follow(cast(InteractiveShell, None))
    interrupted.set()
    assert begun.future.result(LIMIT) is STARTED
    assert begun.text == "installing packages"
    assert screen.getvalue().endswith(": interrupted\n")


def test_a_cluster_starts_though_a_cell_cannot_show_it() -> None:
    is_shown, shown = threading.Event(), []

    def start(say: Progress) -> Started:
        assert is_shown.wait(LIMIT)
        say("waiting in the queue")
        return STARTED

    def fails() -> None:
        raise BrokenPipeError("nobody reads it")

    begun = ClusterStart("shown", start, adopt)
    with begun.listening(fails), begun.listening(lambda: shown.append(begun.text)):
        is_shown.set()
        assert begun.future.result(LIMIT) is STARTED
    assert shown == ["waiting in the queue"]


def record_left(provider: str) -> None:
    """Record the cluster ``left``, whose start was killed."""
    with subprocess.Popen(["true"]) as starter:
        pass
    ended = {"computer": socket.gethostname(), "pid": starter.pid, "mark": "of an ended process"}
    left = registry.describe(ClusterSpec("left"), []) | {"starter": ended}
    registry.record("0123abcd", "left", provider, left)


def test_nobody_waits_for_a_start_that_was_killed_with_another_provider(
    notebook: Notebook,
) -> None:
    record_left("ssh")
    with pytest.raises(SkyError, match="left did not come up when it was started with --provider"):
        notebook.run("%%sky --nodes 1 --provider local --cluster left\nprint('here')")
    notebook.run("%sky down left")
    assert notebook.run("%%sky --nodes 1 --cluster left\nprint('here')") == "here\n"


def test_who_no_longer_waits_for_another_notebook_is_told_that_it_goes_on(
    notebook: Notebook,
) -> None:
    registry.record("0123abcd", "soon", "local", registry.describe(ClusterSpec("soon"), []))

    def interrupt(text: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="no longer waits for soon, which another notebook or"):
        cluster_start.wait_for_starter("soon", interrupt)
    assert registry.find("soon")
    registry.remove("0123abcd")


def test_a_start_in_the_background_waits_for_another_notebook_that_starts_the_cluster(
    notebook: Notebook,
) -> None:
    registry.record("0123abcd", "both", "local", registry.describe(ClusterSpec("both"), []))
    waits, taken_up = threading.Event(), object()

    def start(say: Progress) -> Started:
        raise NameTaken("cluster both is being started by another notebook.")

    def take_up(started: Started | None) -> Cluster:
        assert started is None
        return cast(Cluster, taken_up)

    begun = ClusterStart("both", start, take_up)
    begun.listen(waits.set)
    try:
        assert waits.wait(LIMIT)
        assert "waiting for another notebook" in begun.text
        assert not begun.future.done()
        registry.record_machines("0123abcd", [{"nodes": []}])
        assert begun.cluster(LIMIT) is taken_up
        assert begun.is_over
    finally:
        registry.remove("0123abcd")


def test_a_cluster_is_started_after_all_whose_starter_was_killed_at_that_moment() -> None:
    begun = 0

    def start(say: Progress) -> Started:
        nonlocal begun
        begun += 1
        if begun == 1:
            record_left("local")  # killed before anybody could look who it was
            raise NameTaken("cluster left is being started by another notebook.")
        return STARTED

    try:
        assert ClusterStart("left", start, adopt).future.result(LIMIT) is STARTED
    finally:
        registry.remove("0123abcd")
