"""The second cluster on a machine starts from what the first one has imported."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import orphans, registry
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.agent import start_agent
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests import waiting
from tests.cluster.conftest import Cells
from tests.node_processes import fork_server_of, processes_of_node

TITLE = "jupyter-sky template: has imported what ranks need, for the next cluster"
OF_AGENTS = "jupyter-sky template: has imported what agents need, for the next cluster"


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have templates that no other test uses, and end them."""
    monkeypatch.setenv("TESTED", uuid.uuid4().hex)
    yield
    for process in [*own_templates(), *own_templates(OF_AGENTS)]:
        process.kill()


def own_templates(title: str = TITLE) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get("TESTED") == os.environ["TESTED"]
            if ours and process.cmdline()[0] == title:
                found.append(process)
    return found


def agent_of(cells: Cells) -> psutil.Process:
    row = registry.find(cells.cluster.name)
    assert row is not None
    return psutil.Process(row.machines[0]["pid"])


def maker_of(cells: Cells) -> psutil.Process:
    """Return the process that a cluster's fork server was made by."""
    parent = fork_server_of(agent_of(cells)).parent()
    assert parent is not None
    return parent


def test_a_second_cluster_is_forked_and_has_its_own_environment(new, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SSH_TTY", "first")
    first = new(nodes=2, framework=False)
    assert maker_of(first) == agent_of(first)
    monkeypatch.setenv("SSH_TTY", "second")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    second = new(nodes=2, framework=False)
    assert maker_of(second).cmdline()[0] == TITLE
    second.run("import os, sys")
    assert second.ask("os.environ['SSH_TTY']") == ["second"] * 2
    profile = str(tmp_path / "profile_default")
    assert second.ask("get_ipython().profile_dir.location") == [profile] * 2
    assert second.ask("os.umask(0o22) or os.umask(0o22)") == [0o22] * 2
    assert first.ask("__import__('os').environ['SSH_TTY']") == ["first"] * 2
    # Neither has to do with how the other ends.
    processes = processes_of_node(agent_of(second))
    first.cluster.down()
    assert second.ask("6 * 7") == [42, 42]
    second.cluster.down()
    assert psutil.wait_procs(processes, timeout=30)[1] == []


def test_a_second_agent_is_forked_and_is_an_agent_of_its_own(new, monkeypatch) -> None:
    monkeypatch.setenv("SSH_TTY", "first")
    first = new(nodes=1, framework=False)
    monkeypatch.setenv("SSH_TTY", "second")
    second = new(nodes=1, framework=False)
    template = agent_of(second).parent()
    assert template is not None
    assert template.cmdline()[0] == OF_AGENTS
    assert agent_of(second).ppid() != agent_of(first).ppid()
    assert second.ask("__import__('os').environ['SSH_TTY']") == ["second"]
    # It has no files of the first one, and none of the template's.
    waiting.until(lambda: agent_of(second).num_fds() == agent_of(first).num_fds())
    # As what looks for agents expects it, also that of an earlier version.
    for cells in (first, second):
        *command, folder = agent_of(cells).cmdline()
        assert command[1:] == ["-P", "-m", "jupyter_sky.node"]
        row = registry.find(cells.cluster.name)
        assert row is not None
        assert Path(folder) == Path(row.machines[0]["folder"])
    # Neither has to do with how the other ends, or the template.
    agent_of(first).kill()
    template.kill()
    assert second.ask("6 * 7") == [42]
    processes = processes_of_node(agent_of(second))
    second.cluster.down()
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    third = new(nodes=1, framework=False)
    assert third.ask("6 * 7") == [42]


def test_nothing_is_forked_for_somebody_who_has_given_up(new) -> None:
    new(nodes=1, framework=False)
    [template] = waiting.until(lambda: own_templates(OF_AGENTS))
    [place] = [each.laddr for each in template.net_connections("unix") if each.laddr]
    template.suspend()
    with socket.socket(socket.AF_UNIX) as sock, Path(os.devnull).open() as nothing:
        sock.connect(place)
        socket.send_fds(sock, [b" "], [nothing.fileno(), nothing.fileno()])
        sock.sendall(b'{"folder": "/", "path": [], "env": {}, "cwd": ""}')
    template.resume()
    second = new(nodes=1, framework=False)
    assert agent_of(second).parent() == template
    assert [child.pid for child in template.children()] == [agent_of(second).pid]


def test_an_agent_that_cannot_start_says_why_from_a_template_too(tmp_path) -> None:
    said = []
    for name in ("first", "second"):
        folder, blobs = tmp_path / name, tmp_path / f"blobs of {name}"
        folder.mkdir()
        blobs.mkdir()
        spec = AgentSpec(
            cluster="broken",
            id="broken",
            socket=str(folder / ("x" * 200)),
            blobs=str(blobs),
            ranks=(),
            grace=1.0,
            cwd=str(tmp_path),
            templates=str(of_the_user()),
        )
        with pytest.raises(sky.SkyError) as caught:
            start_agent(folder, spec)
        said.append(str(caught.value))
        [template] = waiting.until(lambda: own_templates(OF_AGENTS))
        waiting.until(lambda left=template: not left.children())
    assert said == ["the agent did not start: OSError: AF_UNIX path too long"] * 2


def test_a_changed_variable_or_module_is_imported_again(new_with, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "slow_to_import.py"
    module.write_text("import os\nwho, value = os.environ.get('WHO'), 1\n")
    plugin = sky.Plugin("slow", preload=("slow_to_import",))

    def seen() -> tuple[str | None, int]:
        cells = new_with([plugin], 1)
        cells.run("import slow_to_import as slow")
        [found] = cells.ask("(slow.who, slow.value)")
        return found

    assert seen() == (None, 1)
    monkeypatch.setenv("WHO", "me")
    assert seen() == ("me", 1)
    module.write_text("import os\nwho, value = os.environ.get('WHO'), 2\n# of another length\n")
    assert seen() == ("me", 2)


def test_a_notebook_in_another_folder_does_not_import_everything_again(
    new, tmp_path, monkeypatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "code").mkdir(parents=True)  # called like a module, and is none
    with monkeypatch.context() as patch:
        patch.syspath_prepend(first)
        new(nodes=1, framework=False)
    monkeypatch.syspath_prepend(second)
    cells = new(nodes=1, framework=False)
    assert maker_of(cells).cmdline()[0] == TITLE
    [path] = cells.ask("__import__('sys').path")
    assert path[0] == str(second)
    assert str(first) not in path


def test_a_folder_with_a_module_of_that_name_has_its_own(new_with, tmp_path, monkeypatch) -> None:
    plugin = sky.Plugin("colours", preload=("colorsys",))
    cells = new_with([plugin], 1)
    assert cells.ask("hasattr(__import__('colorsys'), 'rgb_to_hsv')") == [True]
    (tmp_path / "colorsys.py").write_text("ours = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    cells = new_with([plugin], 1)
    assert cells.ask("__import__('colorsys').ours") == [True]


def test_what_python_runs_at_its_start_is_not_skipped(new, tmp_path, monkeypatch) -> None:
    new(nodes=1, framework=False)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['CUSTOMIZED'] = 'yes'\n")
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), inherited])))
    second = new(nodes=1, framework=False)
    assert second.ask("__import__('os').environ.get('CUSTOMIZED')") == ["yes"]


def test_a_dead_template_costs_no_cluster_and_leaves_nothing(new, monkeypatch) -> None:
    new(nodes=1, framework=False)
    [template] = waiting.until(own_templates)  # it takes its title when the cluster is up already
    [place] = [Path(each.laddr) for each in template.net_connections("unix") if each.laddr]
    template.kill()
    template.wait()
    monkeypatch.setenv("TESTED_TOO", "1")
    other = new(nodes=1, framework=False)
    assert other.ask("1") == [1]
    waiting.until(lambda: not place.exists())
    monkeypatch.delenv("TESTED_TOO")
    second = new(nodes=1, framework=False)
    assert second.ask("1") == [1]
    third = new(nodes=1, framework=False)
    assert maker_of(third).cmdline()[0] == TITLE


def test_what_is_left_of_one_cluster_has_nothing_of_another(new) -> None:
    first = new(nodes=1, framework=False)
    second = new(nodes=1, framework=False)
    agent_of(first).kill()
    for orphan in orphans.find():
        orphan.remove()
    assert second.ask("1") == [1]


def test_a_killed_agent_takes_with_it_what_a_template_has_forked(new) -> None:
    new(nodes=1, framework=False)
    second = new(nodes=1, framework=False)
    processes = processes_of_node(agent_of(second))
    agent_of(second).kill()
    assert psutil.wait_procs(processes, timeout=30)[1] == []


def test_nobody_else_can_ask_a_template(new) -> None:
    new(nodes=1, framework=False)
    places = list(of_the_user().glob("*.template"))
    assert places
    assert {stat.S_IMODE(place.stat().st_mode) for place in places} == {0o600}
    assert stat.S_IMODE(of_the_user().stat().st_mode) == 0o700
