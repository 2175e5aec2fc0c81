"""Machines that are stopped and started with the buttons of JupyterLab's sidebar."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.providers.aws.clients import Clients
from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser, end_clusters
from tests.notebook.panel.bench import LEGIBLE
from tests.notebook.panel.conftest import chromium, shots
from tests.notebook.panel.jupyter import Pages, serve
from tests.providers.aws.stand_in.machines import Machines

__all__ = ["chromium", "shots"]

skip_without("jupyterlab")

STOP = "Stop its machines and keep their disks"


def test_a_user_stops_machines_and_starts_them(
    machines: Machines,
    clients: Clients,
    left: Callable[[], list[str]],
    chromium: Any,
    tmp_path: Path,
    shots: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As of a user whose settings are in a file: `jupyter sky start` reads them as kernels do.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    aws = {"subnet": machines.subnet(clients), "addresses": "private", "user": "root"}
    aws["ask_above"] = 0.01
    (profile / "ipython_config.py").write_text(
        f"c.Sky.aws = {aws}\nc.Sky.python = {sys.executable!r}\nc.Sky.plugin = ['none']\n"
    )
    with serve(tmp_path) as server:
        user = SidebarUser(Pages(chromium), server, "lab", "stops")
        try:
            follow(user, machines, shots)
        finally:
            user.page.screenshot(path=shots / "sidebar-stops-end.png")
            end_clusters(server)
            user.leave()
        assert (user.alerts, user.trouble) == ([], [])
    assert left() == []


def follow(user: SidebarUser, machines: Machines, shots: Path) -> None:
    """Do what a user does who goes home, and comes back."""
    user.run("%load_ext jupyter_sky")
    user.run(
        "%%sky --provider aws --nodes 1 --cpus 4+ --cluster train --max-price 0.3\n"
        "open('kept', 'w').write('on the disk')\nprint('it is', 'kept')"
    ).get_by_text("it is kept").last.wait_for()
    user.card("train", "idle").wait_for()
    card = user.opened("train")
    card.get_by_role("button", name=STOP).focus()
    user.page.keyboard.press("Enter")
    dialog = user.page.get_by_role("dialog")
    dialog.get_by_text("Stop the machines of train?").wait_for()
    dialog.get_by_text(
        re.compile(r"loses variables of rank 0 and keeps files on its disks; its disks cost \$0\.0")
    ).wait_for()
    for theme in ("Dark", "Light"):
        picture(user, theme, shots / f"sidebar-stop-{theme.lower()}.png")
    user.confirm("Cancel")
    cell = user.run("%%sky\nprint('still', open('kept').read())")
    cell.get_by_text("still on the disk").last.wait_for()
    card.get_by_role("button", name=STOP).click()
    user.confirm("Stop machines")
    user.wait_for_toast("train: stopped; its disks cost $0.0")

    card = user.card("train", "stopped")
    card.get_by_text(re.compile(r"its disks \$0\.0\d+ an hour")).wait_for()
    assert not any(host.is_up for host in machines.hosts.values())
    assert card.get_by_role("button", name=STOP).is_disabled()
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        assert user.sidebar.evaluate(LEGIBLE) == {"outside": [], "faint": []}
        user.page.screenshot(path=shots / f"sidebar-stopped-{theme.lower()}.png")
    assert user.flaws(".jsky-sidebar") == []

    card.get_by_role("button", name="Start its machines again").focus()
    user.page.keyboard.press("Enter")
    dialog.get_by_text("They cost $0.21 an hour, as before.").wait_for()
    user.page.screenshot(path=shots / "sidebar-start.png")
    user.confirm("Start")
    user.card("train", "idle").wait_for()
    cell = user.run("%%sky --cluster train\nprint('now', open('kept').read())")
    cell.get_by_text("now on the disk").last.wait_for()

    # Who agrees to a price in the dialog is not refused for a limit of before, and asked no more.
    card = user.card("train", "idle")
    card.get_by_role("button", name="Change the number of nodes").click()
    dialog.get_by_role("spinbutton").fill("2")
    dialog.get_by_role("button", name="Change").click()  # another question follows
    dialog.get_by_text("It will cost $0.42 an hour.").wait_for()
    user.confirm("OK")
    card.get_by_text("idle · 2 nodes").wait_for()


def picture(user: SidebarUser, theme: str, path: Path) -> None:
    """Take a picture of a dialog, in a theme that is chosen behind it."""
    user.choose_theme(theme)
    user.page.screenshot(path=path)
