"""Environments on nodes: made by uv from an index or from wheels, used again, and what fails."""

from __future__ import annotations

import base64
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.open_streams import OpenStreams
from jupyter_sky.api.calls.single_runs import SingleRuns
from jupyter_sky.api.environment.files import read_file
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.packages import project, sources
from jupyter_sky.providers.progress import Preparation
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.agent import start_agent
from jupyter_sky.providers.ssh.setup.code_package import code_package
from jupyter_sky.providers.ssh.setup.facts import gather_facts
from jupyter_sky.providers.ssh.setup.files import archive, check_files
from jupyter_sky.providers.ssh.setup.packages.environment import _script
from jupyter_sky.providers.ssh.setup.packages.recipe import Recipe, recipe_for
from jupyter_sky.providers.ssh.setup.packages.uv import find_uv
from jupyter_sky.providers.ssh.setup.packages.wheels import send_wheels
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from tests.lab import Lab, wheels
from tests.lab.host import USERS, command
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.waiting import until


def said(image: sky.Image, hosts: str = "lab1") -> tuple[list[str], Any]:
    """Start a cluster with an image and call a function; return the progress and the result."""

    @sky.compute
    def look() -> dict[str, Any]:
        import os
        import sys

        import greeting

        return {"word": greeting.WORD, "prefix": sys.prefix, "env": dict(os.environ)}

    lines: list[str] = []

    def note(progress: str | Preparation) -> None:
        steps = progress.steps if isinstance(progress, Preparation) else ()
        lines.extend([str(progress), *(f"{step.node}: {step.text}" for step in steps)])

    from jupyter_sky.api.assemble import assemble

    name, nodes = f"env-{uuid.uuid4().hex[:6]}", hosts.count(",") + 1
    spec, runtime_env = assemble(ClusterSpec(name=name, nodes=nodes, image=image), [])
    cluster = Cluster.start(spec, sky.SSH(hosts), runtime_env, note)
    try:
        return lines, SingleRuns(cluster, (), OpenStreams()).on_all(look())[0]
    finally:
        cluster.down()


def test_uv_installs_from_an_index_once(lab: Lab, client: Path, shelf: Path) -> None:
    # Other tests may have put uv and the same environment there.
    shutil.rmtree(lab.hosts[0].home / ".cache", ignore_errors=True)
    with wheels.serve(shelf, lab.address, password="s3cret-key") as index:
        image = sky.Image(
            pip=["greeting"],
            pip_indexes=[index],
            env={"TOKEN": "hidden-token"},
            bootstrap=['echo "${TOKEN%-*} $(hostname)" > told'],
            shell_vars={"WHERE": "hostname"},
        )
        lines, found = said(image)
    assert found["word"] == "hello"
    assert "/.cache/jupyter-sky/envs/" in found["prefix"]
    assert found["env"]["TOKEN"] == "hidden-token"
    assert found["env"]["WHERE"] == "lab1"
    [told, *_] = (lab.hosts[0].home / "jupyter-sky").glob("env-*/told")
    assert told.read_text() == "hidden lab1\n"
    assert any("sending uv" in line for line in lines)
    assert any("installing" in line for line in lines)
    # The index is not there any more: nothing is asked of it.
    lines, again = said(image)
    assert again["prefix"] == found["prefix"]
    assert not any("installing" in line or "sending uv" in line for line in lines)
    left = subprocess.run(
        ["grep", "-rlaE", "s3cret-key|hidden-token", lab.hosts[0].folder / "home"],
        capture_output=True,
        text=True,
    )
    assert left.stdout == ""


def test_what_python_has_compiled_for_one_environment_holds_for_the_next(
    lab: Lab, client: Path, shelf: Path
) -> None:
    """Compiling torch anew takes as long as importing it."""
    with wheels.serve(shelf, lab.address) as index:
        prefixes = [
            said(sky.Image(pip=[asked], pip_indexes=[index]))[1]["prefix"]
            for asked in ("greeting<3", "greeting<2")
        ]
    first, second = (
        [path.stat().st_ino for path in sorted(Path(prefix).rglob("greeting.*.pyc"))]
        for prefix in prefixes
    )
    assert prefixes[0] != prefixes[1]
    assert first == second != []


@pytest.fixture
def world(lab: Lab, shelf: Path) -> Iterator[str]:
    """An index of packages in a network behind this machine, which knows no way to hosts."""
    name, network = f"{lab.bridge}w", f"198.18.{lab.index}"
    serve = (
        "import sys, pathlib; from tests.lab import wheels\n"
        f"with wheels.serve(pathlib.Path({str(shelf)!r}), '{network}.2') as index:\n"
        "    print(index, flush=True); sys.stdin.read()"
    )
    command(["ip", "netns", "delete", name], check=False)  # of a test that was killed
    command(["ip", "netns", "add", name])
    command(["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name])
    command(["ip", "address", "add", f"{network}.1/24", "dev", name])
    command(["ip", "link", "set", name, "up"])
    inside = ["ip", "netns", "exec", name]
    command([*inside, "ip", "address", "add", f"{network}.2/24", "dev", "eth0"])
    command([*inside, "ip", "link", "set", "eth0", "up"])
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", serve], stdin=-1, stdout=-1, text=True
    )
    try:
        lab.open_gate()
        yield process.stdout.readline().strip()
    finally:
        lab.close_gate()
        process.communicate("")
        command(["ip", "netns", "delete", name])


def test_uv_installs_from_an_index_on_the_other_side_of_a_gate(
    lab: Lab, client: Path, world: str
) -> None:
    image = sky.Image(pip=["greeting>=1"], pip_indexes=[world])
    assert said(image, "lab4")[1]["word"] == "hello"


def test_offline_nodes_take_wheels_that_are_sent_to_one_of_them(
    lab: Lab, client: Path, shelf: Path
) -> None:
    for host in lab.hosts[1:3]:
        shutil.rmtree(host.home / ".cache", ignore_errors=True)
    lines, found = said(sky.Image(pip=["greeting==1.0"], pip_indexes=[str(shelf)]), "lab2,lab3")
    assert found["word"] == "hello"
    for what in ("uv", r"\d+ wheels"):
        sent = {line[:4] for line in lines if re.fullmatch(rf"lab\d: sending {what}.*", line)}
        taken = {line[:4] for line in lines if re.fullmatch(rf"lab\d: taking {what} from .*", line)}
        assert len(sent) == 1, lines
        assert sent | taken == {"lab2", "lab3"}, lines
    for host in lab.hosts[1:3]:
        assert not host.processes("http.server")
        assert not list(host.home.glob(".cache/jupyter-sky/wheels/*/all.tar"))


def test_hosts_without_an_index_are_told_to_take_wheels_along(lab: Lab, client: Path) -> None:
    with pytest.raises(sky.SkyError) as caught:
        said(sky.Image(pip=["greeting"]), "lab4")
    sentence = str(caught.value)
    assert "lab4: it reaches no package index: `%pip download -d wheels 'ipython>=8.20'" in sentence
    assert "greeting` gets what it needs, and `--wheels wheels` takes it along" in sentence


def test_a_failing_installation_shows_its_last_lines(lab: Lab, client: Path, shelf: Path) -> None:
    environments = lab.hosts[2].home / ".cache" / "jupyter-sky" / "envs"
    before = set(environments.glob("*"))
    with (
        wheels.serve(shelf, lab.address, password="s3cret-key") as index,
        pytest.raises(sky.SkyError) as caught,
    ):
        said(sky.Image(pip=["greeting==2.0"], pip_indexes=[sky.PipIndex(index)]), "lab3")
    text = str(caught.value)
    assert "lab3: its environment could not be made:" in text
    assert "`uv pip install` failed" in text
    assert "greeting==2.0" in text
    assert "s3cret-key" not in text
    assert set(environments.glob("*")) == before


def test_a_file_of_requirements_and_files_that_go_along(
    lab: Lab, client: Path, shelf: Path, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("# what we need\ngreeting\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("kept")
    (tmp_path / "data" / "b.log").write_text("left out")
    image = sky.Image(
        pip=[f"-r {tmp_path / 'requirements.txt'}"],
        pip_indexes=[str(shelf)],
        includes=[str(tmp_path / "data")],
        excludes=["*.log"],
    )

    @sky.compute
    def look() -> list[str]:
        from pathlib import Path

        return sorted(str(path) for path in Path("data").iterdir())

    with sky.ComputePool(provider=sky.SSH("lab2"), image=image, name="files") as pool:
        assert look() @ pool == [["data/a.txt"]]


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (sky.Image(python="3.8"), "the image has Python 3.8 and the notebook"),
        (sky.Image(pip=["-r nowhere.txt"]), "-r nowhere.txt cannot be read"),
        (sky.Image(pip_indexes=["nowhere"]), "neither an address nor a folder with wheels"),
        (sky.Image(includes=["nowhere"]), "includes has 'nowhere', which does not exist"),
    ],
)
def test_what_is_wrong_with_an_image_is_said_at_once(image: sky.Image, sentence: str) -> None:
    with pytest.raises(sky.UsageError, match=sentence):
        sky.ComputePool(provider=sky.SSH("lab1"), image=image).__enter__()


def test_files_that_are_too_large_to_be_included_are_refused_at_once(tmp_path: Path) -> None:
    for name in ("data.bin", "left-out.log"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(3_000_000_000)
    (tmp_path / "again").symlink_to("data.bin")
    check_files(sky.Image(includes=[str(tmp_path)], excludes=["*.log"]))
    with pytest.raises(sky.UsageError) as caught:
        sky.ComputePool(
            provider=sky.SSH("lab1"), image=sky.Image(includes=[str(tmp_path)])
        ).__enter__()
    assert str(caught.value) == (
        f"{tmp_path}: that is 6 GB, and at most 4 GB are included at the start: put large "
        "data into a bucket for `volumes`, or send it with `jupyter sky put --allow-large` when "
        "the nodes are up."
    )


def test_an_included_file_that_cannot_be_read_is_named() -> None:
    file = "/sys/devices/system/cpu/online"  # it has less than its size says, as one that shrinks
    with pytest.raises(sky.UsageError, match=f"^{file} cannot be read .*: make it readable, or"):
        archive([file], [])


def test_an_environment_is_named_after_what_is_in_it() -> None:
    one = recipe_for(sky.Image(pip=["einops"]))
    assert one.digest("x86_64") == recipe_for(sky.Image(pip=["einops"])).digest("x86_64")
    assert one.digest("x86_64") != recipe_for(sky.Image(pip=["einops>1"])).digest("x86_64")
    assert one.digest("x86_64") != one.digest("aarch64")


def test_nodes_need_what_the_project_says() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(NEEDED.values()) <= set(project["project"]["dependencies"])


def test_the_login_of_a_repository_is_in_no_argument(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("b @ git+https://me:p%40ss@h.org/b.git\nc\n")
    recipe = recipe_for(
        sky.Image(pip=["a @ git+https://s3cret@h.org/team/a.git@v1#subdirectory=x", f"-r {listed}"])
    )
    assert "a @ git+https://h.org/team/a.git@v1#subdirectory=x" in recipe.project
    assert recipe.requirements == ("b @ git+https://h.org/b.git\nc\n",)
    assert "s3cret" not in repr(recipe)
    # What git itself makes of it.
    read = ["git", "config", "--get-urlmatch", "http.extraHeader"]
    for where, login in (("h.org/team/a.git", b"s3cret:"), ("h.org/b.git", b"me:p@ss")):
        said = subprocess.run(
            [*read, f"https://{where}/info/refs"],
            env={**os.environ, **recipe.logins},
            capture_output=True,
            text=True,
        )
        expected = f"Authorization: Basic {base64.b64encode(login).decode()}"
        assert said.stdout.strip() == expected
    # The same environment, whoever asks for it.
    assert recipe.digest("x") == recipe_for(
        sky.Image(pip=["a @ git+https://h.org/team/a.git@v1#subdirectory=x", f"-r {listed}"])
    ).digest("x")


def test_what_the_registry_does_not_keep_is_asked_for() -> None:
    with pytest.raises(
        sky.UsageError, match=r"does not keep the secret behind \*\*\*\* in a @ https"
    ):
        recipe_for(sky.Image(pip=["a @ https://****@h.org/a-1.0-py3-none-any.whl"]))


PIP_INSTALL = f"uv-{platform.machine()} pip install"


def test_stop_ends_what_uv_does_there(lab: Lab, notebook: LiveNotebook) -> None:
    host = lab.hosts[1]
    with socket.create_server((lab.address, 0)) as silent:
        index = f"http://{lab.address}:{silent.getsockname()[1]}/simple"
        cell = notebook.start(
            "import jupyter_sky as sky\n"
            f"image = sky.Image(pip=['greeting'], pip_indexes=[{index!r}])\n"
            "pool = sky.ComputePool(provider=sky.SSH('lab2'), image=image)\n"
            "pool.__enter__()"
        )
        silent.accept()[0].close()
        while not host.processes(PIP_INSTALL):
            assert not cell.idle
        notebook.interrupt()
        assert notebook.finish(cell).error is not None
        until(lambda: not host.processes(PIP_INSTALL))
    envs = host.home / ".cache" / "jupyter-sky" / "envs"
    until(lambda: not list(envs.glob("new.*")))


def test_a_full_disk_is_named(lab: Lab, client: Path) -> None:
    host = lab.hosts[1]
    cache = host.home / ".cache"
    cache.mkdir(exist_ok=True)
    for limit, said in (
        ("size=100k", f"lab2: its disk is full, there is no room left in {cache}: make some"),
        (
            "nr_inodes=20",
            f"lab2: it has room for no more files, of any size, in {cache}: remove some, or see",
        ),
    ):
        host.run("mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(cache))
        try:
            with pytest.raises(sky.SkyError) as caught:
                sky.ComputePool(provider=sky.SSH("lab2")).__enter__()
        finally:
            host.run("umount", str(cache))
        assert said in str(caught.value)
        assert "tar:" not in str(caught.value)


@pytest.mark.parametrize(
    "script", ["echo uv 0.2.10", "echo uv: version GLIBC_2.28 not found >&2; exit 1"]
)
def test_a_uv_that_will_not_do_is_not_used(lab: Lab, client: Path, script: str) -> None:
    host = lab.hosts[1]
    old = host.folder / "bin" / "uv"
    old.write_text(f"#!/bin/sh\n{script}\n")
    old.chmod(0o755)
    connection = SSHConnection(parse_one("lab2"))
    try:
        facts = gather_facts(connection)
        assert facts.uv == str(old)
        used = find_uv(connection, facts, Relay(1), lambda text: None)
        # Machines of several kinds may share the home.
        assert used == f"{facts.cache_folder}/bin/uv-{facts.machine}"
        assert connection.run(f"{used} --version").startswith("uv ")
        Path(used).write_text(f"#!/bin/sh\n{script}\n")
        used = find_uv(connection, facts, Relay(1), lambda text: None)
        assert connection.run(f"{used} --version").startswith("uv ")
    finally:
        connection.close()
        old.unlink()


def test_a_quota_that_is_used_up_is_named(lab: Lab, client: Path) -> None:
    """What is free on the disk, and all that others could say of it, does not matter then."""
    host = lab.hosts[1]
    shutil.rmtree(host.home / ".cache" / "jupyter-sky" / "code", ignore_errors=True)
    tar = host.folder / "bin" / "tar"
    tar.write_text("#!/bin/sh\necho 'tar: a: Cannot open: Disk quota exceeded' >&2\nexit 2\n")
    tar.chmod(0o755)
    try:
        with pytest.raises(sky.SkyError) as caught:
            sky.ComputePool(provider=sky.SSH("lab2")).__enter__()
    finally:
        tar.unlink()
    assert "lab2: your quota there is used up, of bytes or of files: make room" in str(caught.value)
    assert "or set XDG_CACHE_HOME there" in str(caught.value)


def test_room_is_needed_where_environments_are_and_leave_to_write_and_to_run_programs(
    lab: Lab, client: Path
) -> None:
    host = lab.hosts[1]
    scratch = host.folder / "scratch"
    scratch.mkdir()

    def refused() -> str:
        with pytest.raises(sky.SkyError) as caught:
            sky.ComputePool(provider=sky.SSH("lab2")).__enter__()
        return str(caught.value)

    host.run("mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(host.home))
    host.run("mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(scratch))
    try:
        assert f"lab2: only 0.0 GB are free in {host.home}/.cache, which is too little" in refused()
        environment = re.search("^SetEnv .*$", (host.folder / "etc/sshd_config").read_text(), re.M)
        assert environment
        with host.configured(f"{environment[0]} XDG_CACHE_HOME={scratch}/mine"):
            assert "lab2: programs may not be run where its environments are" in refused()
            host.run("mount", "-o", "remount,ro", str(scratch))
            there = f"nothing can be written to {scratch}/mine/jupyter-sky"
            assert f"lab2: {there}: set XDG_CACHE_HOME there to" in refused()
        host.run("mount", "-o", "remount,ro", str(host.home))
        there = f"nothing can be written to {host.home}/jupyter-sky"
        assert f"lab2: {there}: log in as a user who has a home" in refused()
        host.run("mount", "--bind", "/tmp", "/tmp")
        host.run("mount", "-o", "remount,bind,ro", "/tmp")
        elsewhere = environment[0].replace(f"TMPDIR={host.folder}/tmp", "TMPDIR=/none")
        try:
            with host.configured(elsewhere):
                there = "nothing can be written to /tmp/jupyter-sky-0"
                assert f"lab2: {there}: set TMPDIR there to a folder" in refused()
        finally:
            host.run("umount", "/tmp")
    finally:
        host.run("umount", str(host.home))
        host.run("umount", str(scratch))


def test_a_folder_that_another_user_made_first_is_not_in_the_way(lab: Lab, start) -> None:
    temporary = lab.hosts[1].folder / "tmp"
    first = temporary / "jupyter-sky-0"
    shutil.rmtree(first, ignore_errors=True)
    first.mkdir()
    os.chown(first, USERS["ada"], USERS["ada"])
    # The clock of the host is set forward as each agent starts, as it may be after booting.
    mkdir = lab.hosts[1].folder / "bin" / "mkdir"
    mkdir.write_text(
        '#!/bin/sh\n/usr/bin/mkdir "$@" || exit\n'
        'case $1 in /dev/shm/*) touch -d "2 hours ago" "$1" ;; esac\n'
    )
    mkdir.chmod(0o755)
    try:
        for _ in range(2):
            assert start("lab2", framework=False).ask("1 + 1") == [2]
        # The second found what the first had made.
        [own] = temporary.glob("jupyter-sky-0.*")
        assert own.stat().st_uid == 0
        assert len(list(own.glob("*-*"))) == 2
    finally:
        mkdir.unlink()
        first.rmdir()


def test_what_another_user_has_put_into_a_cache_for_all_is_not_run(
    lab: Lab, start, client: Path
) -> None:
    host = lab.hosts[1]
    cache = host.folder / "cache"
    code = cache / "jupyter-sky" / "code" / code_package().digest / "jupyter_sky" / "node"
    code.mkdir(parents=True)
    cache.chmod(0o1777)
    (code / "__main__.py").write_text(f"open({str(cache / 'taken')!r}, 'w')\n")
    for path in (cache / "jupyter-sky", *(cache / "jupyter-sky").rglob("*")):
        os.chown(path, USERS["bob"], USERS["bob"])
    environment = re.search("^SetEnv .*$", (host.folder / "etc/sshd_config").read_text(), re.M)
    assert environment
    with host.configured(f"{environment[0]} XDG_CACHE_HOME={cache}"):
        there = f"lab2: {cache}/jupyter-sky belongs to or can be changed by somebody else"
        with pytest.raises(sky.SkyError, match=f"{there}: set XDG_CACHE_HOME there"):
            start("lab2", framework=False)
        assert not (cache / "taken").exists()
        # One that is not there yet is made before anybody else can make it.
        shutil.rmtree(cache / "jupyter-sky")
        assert start("lab2", framework=False).ask("1 + 1") == [2]
        assert (cache / "jupyter-sky").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["relative", "long"])
def test_variables_that_cannot_be_used_are_passed_over(lab: Lab, start, kind: str) -> None:
    host = lab.hosts[1]
    long = host.folder / "scratch" / ("long" * 20)
    long.mkdir(parents=True, exist_ok=True)
    place = long if kind == "long" else kind
    environment = re.search("^SetEnv .*$", (host.folder / "etc/sshd_config").read_text(), re.M)
    assert environment
    # All hosts of a lab have one /tmp, which may be where this repository is.
    ours = Path(f"/tmp/jupyter-sky-{os.getuid()}")
    ours.mkdir(mode=0o700, exist_ok=True)
    host.run("mount", "-t", "tmpfs", "-o", "mode=0700", "tmpfs", str(ours))
    # Nor can shared memory be used that nobody can write to.
    host.run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/dev/shm")
    try:
        (host.folder / "scratch" / "sitecustomize.py").write_text(
            "import atexit\nprint('hello')\natexit.register(print, 'bye')\n"
        )
        changed = re.sub(r"TMPDIR=\S+", f"TMPDIR={place}", environment[0])
        changed += f" XDG_CACHE_HOME={kind} PYTHONHOME=/opt/other PYTHONPATH={host.folder}/scratch"
        changed += " PYTHONIOENCODING=utf-16"
        with host.configured(changed):
            cells = start("lab2", framework=False)
            cells.namespace["data"] = bytes(3_000_000)
            assert cells.ask("len(data)", names=["data"]) == [3_000_000]
            cells.cluster.down()
    finally:
        host.run("umount", "--lazy", "/dev/shm")
        host.run("umount", "--lazy", str(ours))


def test_an_agent_that_is_killed_as_it_starts_is_said_to_be(lab: Lab, client: Path) -> None:
    connection = SSHConnection(parse_one("lab1"))
    tmp = lab.hosts[0].folder / "tmp"
    python = lab.hosts[0].folder / "bin" / "killed-python"
    python.write_text("#!/bin/sh\necho '{\"pid\": 1}'\nkill -KILL $$\n")
    python.chmod(0o755)
    folder, blobs = f"{tmp}/agents/a-0", f"{tmp}/blobs"
    spec = AgentSpec(
        cluster="a", id="a", socket="", blobs=blobs, ranks=(), grace=1.0, cwd=f"{tmp}/work"
    )
    killing = tmp / "killing"
    killing.mkdir()
    (killing / "sitecustomize.py").write_text(
        "import os\nos.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), 9))\n"
    )
    try:
        with pytest.raises(HostError, match="^the agent did not start: Killed$"):
            start_agent(connection, folder, spec, str(python), "/")
        assert not Path(folder).exists()
        code = f"{killing}:{ROOT}"
        with pytest.raises(HostError, match="^the agent did not start: it was killed by SIGKILL$"):
            start_agent(connection, folder, spec, sys.executable, code)
    finally:
        connection.close()


def test_a_wheel_that_is_sent_keeps_what_was_asked_of_it(tmp_path: Path) -> None:
    wheel = wheels.write(tmp_path, "own", "1.2", own="")
    pins = ["own[more,dev]==1.2 ; python_version > '3'", "einops>=0.8"]
    project = recipe_for(sky.Image(pins=pins, wheels=[str(wheel)]), cuda=False).project
    assert "own[dev,more] @ file://" in project
    assert f"/{wheel.name} ; python_version > " in project
    assert '"einops>=0.8"' in project


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path: Path) -> None:
    """As where the machine was upgraded: there is a folder of its name, in which nothing runs."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("there is no uv")
    folder = tmp_path / "envs/made"
    python = folder / "bin/python"
    recipe = Recipe(".".join(sys.version.split()[0].split(".")[:2]), project([], ""))

    def make() -> subprocess.CompletedProcess[str]:
        script = _script(str(folder), uv, None, recipe)
        return subprocess.run(["sh"], input=script, capture_output=True, text=True)

    assert make().returncode == 0
    # One that is whole stays: another kernel uses it.
    (folder / "kept").touch()
    assert make().returncode == 0
    assert (folder / "kept").exists()
    python.unlink()
    python.symlink_to(tmp_path / "nowhere/python")
    again = make()
    assert again.returncode == 0, again.stdout
    subprocess.run([python, "-c", "import sys"], check=True)
    assert [each.name for each in folder.parent.iterdir()] == ["made"]


class ShellHere:
    """Runs scripts for a node on this computer, and something else before one of them."""

    target = "here"

    def __init__(self, before: Callable[[str], None] = lambda script: None) -> None:
        self._before = before

    def connect(self) -> None:
        """There is nothing to connect to."""

    def run(self, script: str, data: bytes | None = None, **_: Any) -> str:
        """Run a script with sh."""
        self._before(script)
        done = subprocess.run(["sh", "-c", script], input=data, capture_output=True)
        if done.returncode:
            raise CommandError((done.stdout + done.stderr).decode())
        return done.stdout.decode()


def test_two_kernels_send_the_same_wheels_at_once(tmp_path: Path) -> None:
    wheel = wheels.write(tmp_path / "own", "own", "1.2", own="WORD = 'whole'\n")
    recipe = Recipe("3.11", project([], ""), wheels=(wheel,))
    facts: Any = SimpleNamespace(cache_folder=str(tmp_path / "cache"), machine="x86_64")

    def send(shell: ShellHere) -> Path:
        found = send_wheels(shell, facts, recipe, Relay(1), lambda text: None)
        assert found is not None
        return Path(found)

    others: list[int] = []

    def other(script: str) -> None:
        if "tar -xf" in script:  # what the first has sent is there, and not unpacked yet
            kept = send(ShellHere()) / wheel.name
            others.append(kept.stat().st_ino)

    folder = send(ShellHere(other))
    assert (folder / wheel.name).read_bytes() == wheel.read_bytes()
    # Whoever reads the other's, as uv does now, reads on.
    assert others == [(folder / wheel.name).stat().st_ino]
    assert [each.name for each in folder.iterdir()] == [wheel.name]
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]


def test_an_index_of_pytorch_hides_no_versions_of_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has old ones of many, as of numpy and requests, and uv looks no further for these."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("there is no uv")
    usual, own = tmp_path / "usual", tmp_path / "own"
    wheels.write(own, "torch", "2.9.0+cpu", torch_here="WHERE = 'own'\n")
    wheels.write(usual, "torch", "2.9.0", torch_here="WHERE = 'usual'\n")
    wheels.write(own, "helper", "1.0", helper="")
    wheels.write(usual, "helper", "2.0", helper="")
    address = "https://download.pytorch.org/whl/cpu"
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"--extra-index-url {address}\ntorch==2.9.0\nhelper==2.0\n")
    found = read_file(listed)
    settings = sources(found.joined_to(sky.Image())).settings
    made = tmp_path / "envs/made"
    with wheels.serve(usual, "127.0.0.1") as pypi, wheels.serve(own, "127.0.0.1") as pytorch:
        monkeypatch.setenv("UV_DEFAULT_INDEX", pypi)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "downloaded"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        asked = project(found.requirements, settings).replace(address, pytorch)
        recipe = Recipe(".".join(map(str, sys.version_info[:2])), asked)
        ShellHere().run(_script(str(made), uv, None, recipe))
    code = "from importlib.metadata import version as v; print(v('torch'), v('helper'))"
    said = subprocess.run([made / "bin/python", "-c", code], capture_output=True, text=True)
    assert said.stdout.split() == ["2.9.0+cpu", "2.0"]
    # Nobody can offer what another index is for, by a newer version elsewhere.
    private = sky.Image(pip_indexes=[address, "https://wheels.example.org/simple"])
    assert "index-strategy" not in sources(private).settings
