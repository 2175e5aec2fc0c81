"""Looking after machines: whether they reach each other, and what nobody uses there any more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.setup.agent import remove_agent
from tests.lab import Lab
from tests.notebook.conftest import Notebook, notebook
from tests.waiting import PATIENCE

__all__ = ["notebook"]

MONTH_AGO = time.time() - 30 * 24 * 3600


@pytest.fixture
def pool(client: Path, shelf: Path) -> Iterator[sky.ComputePool]:
    image = sky.Image(pip_indexes=[str(shelf)])
    with sky.ComputePool(provider=sky.SSH("lab1"), image=image, name="kept") as made:
        yield made


def prefix(pool: sky.ComputePool) -> str:
    """Return the environment that a pool of one rank uses."""

    # A function of a test travels whole; the module that it is in stays here.
    @sky.compute
    def look() -> str:
        import sys

        return sys.prefix

    return (look() @ pool)[0]


def grow_old(folder: Path) -> None:
    os.utime(folder, (MONTH_AGO, MONTH_AGO))


# Where a grep takes files for text with zeros in it, it reads lines up to these, unless told -z.
_LIKE_BUSYBOX = {
    "grep": r"""#!/bin/sh
case $1 in
    *z* | *o*) exec /usr/bin/grep "$@" ;;
    *q*) sed 's/\x00.*//' "$4" | exec /usr/bin/grep "$1" -- "$3" ;;
    *) exit 1 ;;
esac
""",
    "find": """#!/bin/sh
case "$*" in
    *-printf*) echo "find: unrecognized: -printf" >&2; exit 1 ;;
esac
exec /usr/bin/find "$@"
""",
}


@pytest.fixture
def like_busybox(lab: Lab) -> Iterator[None]:
    """Tools of the first host that are like those of BusyBox."""
    programs = {lab.hosts[0].folder / "bin" / name: text for name, text in _LIKE_BUSYBOX.items()}
    for path, text in programs.items():
        path.write_text(text)
        path.chmod(0o755)
    yield
    for path in programs:
        path.unlink()


@pytest.mark.usefixtures("like_busybox")
def test_an_agent_that_does_not_end_is_killed_and_no_other_nodes(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    for folder in ("/x/agents/a-1", "/x/agents/a-1////", "/x/agents/a-10", "/x/agents/a-10////"):
        host.run("sh", "-c", f"sh -c 'sleep 600; :' agent {folder} >/dev/null 2>&1 &")
    connection = SSHConnection(parse_one("lab1"))
    try:
        assert len(host.processes("/x/agents/a-1")) == 4
        remove_agent(connection, "/x/agents/a-1", "/x/agents/blobs")
        left = [each.cmdline()[-1] for each in host.processes("/x/agents/a-1")]
        assert sorted(left) == ["/x/agents/a-10", "/x/agents/a-10////"]
    finally:
        connection.close()
        for each in host.processes("sleep 600"):  # and the shells, which have it in their commands
            each.kill()


@pytest.mark.usefixtures("like_busybox")
def test_gc_gives_back_what_nobody_uses(
    lab: Lab, pool: sky.ComputePool, notebook: Notebook
) -> None:
    used = prefix(pool)
    ours = Path(used).parents[1]
    unused = ours / "envs" / "0123"
    unused.mkdir()
    (unused / "weights").write_bytes(bytes(5_000_000))
    (unused / "shared").write_bytes(bytes(3_000_000))
    (lab.hosts[0].home / "cached").hardlink_to(unused / "shared")
    recent = ours / "envs" / "4567"
    recent.mkdir()
    for folder in [unused, *(ours / "code").iterdir(), Path(used)]:
        grow_old(folder)
    said = notebook.run("%sky gc --hosts lab1").splitlines()[-1]
    assert said.startswith("lab1: removed 1 environment, 5 MB freed (3 MB more are in uv's")
    assert not unused.exists()
    assert recent.exists()
    assert prefix(pool) == used
    # Nobody but processes says that it is used; now they are gone, a minute before the last of
    # them would have ended by itself.
    pool.__exit__(None, None, None)
    templates = lab.hosts[0].processes("jupyter-sky template")
    for process in templates:
        process.kill()
    psutil.wait_procs(templates, PATIENCE)
    said = notebook.run("%sky gc --hosts lab1").splitlines()[-1]
    assert "1 environment" in said
    assert "version" in said
    assert not Path(used).exists()
    assert notebook.run("%sky gc --hosts lab1").splitlines()[-1] == (
        "lab1: every environment there is in use"
    )


def test_who_uses_an_environment_leaves_a_mark_that_other_machines_see(
    lab: Lab, client: Path, shelf: Path
) -> None:
    image = sky.Image(pip_indexes=[str(shelf)])
    found = []
    for _ in range(2):
        with sky.ComputePool(provider=sky.SSH("lab1"), image=image, name="kept") as pool:
            found.append(prefix(pool))
            assert Path(found[-1]).stat().st_mtime > MONTH_AGO + 3600
            for folder in [Path(found[-1]), *(Path(found[-1]).parents[1] / "code").iterdir()]:
                grow_old(folder)
    assert found[0] == found[1]


def test_the_doctor_has_hosts_try_each_other(lab: Lab, client: Path, notebook: Notebook) -> None:
    said = notebook.run("%sky doctor --hosts lab1,lab2,lab3")
    between = said.partition("between them:\n")[2].splitlines()
    for host, line in zip(lab.hosts[:3], between[:3], strict=True):
        assert line.startswith(f"ok   {host.name}")
        assert line.endswith(f"{host.address} on eth0, all others reach it")
    assert between[3] == "all is well"


def test_the_doctor_says_whose_firewall_to_open_for_whom(
    lab: Lab, client: Path, notebook: Notebook
) -> None:
    first, second = lab.hosts[:2]
    first.run(*f"iptables -A INPUT -p tcp --syn -s {second.address} -j DROP".split())
    try:
        said = notebook.run("%sky doctor --hosts lab1,lab2,lab3")
    finally:
        first.speed_up()
    between = said.partition("between them:\n")[2].splitlines()
    assert between[0].startswith("fix  lab1")
    assert "not reached by lab2 (no answer, as when a firewall drops" in between[0]
    assert f"`ufw allow proto tcp from {second.address}` as root on it" in between[0]
    assert between[1].startswith("ok   lab2")
    assert between[2].startswith("ok   lab3")
    assert between[3] == "1 of 3 need your attention"
