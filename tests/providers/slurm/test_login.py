"""A notebook on a laptop: SSH leads to a login node, and Slurm from there to the nodes."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.slurm.partitions import diagnose
from jupyter_sky.providers.slurm.provider import Slurm
from jupyter_sky.providers.slurm.queue import mark, queued_jobs, submit
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.bridge import MARK
from tests.cluster.cells import Cells
from tests.lab import Host, Lab
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.controller import real_slurm
from tests.providers.slurm.test_provider import queue, start
from tests.waiting import until

STARTS = ".cache/jupyter-sky/slurm"


@pytest.fixture(scope="module")
def login(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A login node, which shares its home with the nodes."""
    with login_host(lab, tmp_path_factory.mktemp("laptop") / "home") as host:
        yield host


@contextlib.contextmanager
def login_host(lab: Lab, home: Path, on_nodes: Sequence[str] = ()) -> Iterator[Host]:
    """Make a host of the lab a login node, whose SSH server allows few sessions.

    Parameters
    ----------
    home
        The home of the user on a laptop, which is made.
    on_nodes
        As in `real_slurm`.
    """
    host = lab.hosts[0]
    with (
        real_slurm(lab.address, on_nodes=on_nodes) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        shutil.copytree(lab.home, home)
        with (home / ".ssh" / "config").open("a") as file:
            file.write("Host closed\n  HostName 127.0.0.1\n  Port 1\n")
        patch.setenv("HOME", str(home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        config = host.folder / "etc" / "sshd_config"
        usual = config.read_text()
        with_slurm = usual.replace("SetEnv ", f"SetEnv SLURM_CONF={folder}/slurm.conf ")
        config.write_text(with_slurm.replace("MaxSessions 50", "MaxSessions 10"))
        host.restart_sshd()
        try:
            yield host
        finally:
            for part in range(2):
                pool.get(parse_one(host.name), part=part).close()
            config.write_text(usual)
            host.restart_sshd()


def over(host: Host, **options) -> Slurm:
    return Slurm(login=host.name, python=sys.executable, **options)


def test_a_laptop_has_a_cluster_behind_a_login_node(login: Host) -> None:
    said: list[str] = []
    cluster = start("far", said, provider=over(login), nodes=2)
    try:
        row = registry.find("far")
        assert row is not None
        assert any(text.startswith("job ") for text in said)
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['SLURMD_NODENAME']") == ["n1", "n2"]
        # Nodes have the home of the login node, and nothing of this computer.
        work = str(login.home / "jupyter-sky" / "far")
        assert cells.ask("os.getcwd()") == [work, work]
        assert not cluster.sync.shares_files
        assert not [*(login.home / STARTS).iterdir()]
        cells.run("x = 2")
        again = Cluster.attach(row, over(login), cluster.runtime_env)
        assert again is not None
        assert Cells(again).ask("x") == [2, 2]
        again.close()
    finally:
        cluster.down()
    until(lambda: not queue())
    until(lambda: not [*of_the_user().glob(f"{row.id}*")])


def test_nodes_that_join_leave_files_as_ranks_have_saved_them(login: Host, tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("by the notebook")
    image = Image(includes=[str(tmp_path / "saved")])
    cluster = start("saves", provider=over(login), image=image)
    try:
        cells = Cells(cluster)
        assert cells.ask("open('saved').read()") == ["by the notebook"]
        cells.run("with open('saved', 'w') as file: file.write('by a rank')")
        cluster.scale(2)
        assert cells.ask("open('saved').read()") == ["by a rank"] * 2
    finally:
        cluster.down()
    until(lambda: not queue())


def test_a_cell_names_the_login_node(login: Host, tmp_path: Path) -> None:
    notebook = LiveNotebook(tmp_path / "laptop.ipynb", PYTHONPATH=str(ROOT))
    try:
        notebook.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}")
        said = notebook.succeed(f"%sky offers --provider slurm --login {login.name}").stdout
        assert "main: 2 × A100" in said
        assert f"--provider slurm --partition main --login {login.name}`" in said
        found = notebook.run(f"%sky doctor --provider slurm --login {login.name}").stdout
        assert "main: 2 × A100" in found
        notebook.succeed(
            f"%%sky --provider slurm --login {login.name} --nodes 2 --gpu a100 --out total\n"
            "import torch, torch.distributed as dist\n"
            "total = torch.ones(1)\n"
            "dist.all_reduce(total)\n"
            "total = total.item()"
        )
        assert notebook.succeed("print(total)").stdout == "2.0\n"
        notebook.restart()
        notebook.succeed("%load_ext jupyter_sky")
        assert "2.0" in notebook.succeed("%%sky\nprint(total)").stdout
        head, shown, *_ = notebook.succeed("%sky status").stdout.splitlines()
        assert re.match(r"(< )?\d+\.\d+ GPU hours", shown[head.index("cost") :])
        assert "nothing is left running" in notebook.succeed("%sky down").stdout
        costs = notebook.succeed("%sky costs").stdout
        assert re.search(rf"  Slurm at {login.name}  .*\d\.\d+ GPU hours", costs), costs
    finally:
        notebook.close()
    until(lambda: not queue())


def test_as_many_nodes_are_connected_as_there_are(login: Host) -> None:
    answers = f"import sys; sys.stdout.write({MARK.decode()!r}); sys.stdout.flush(); input()"
    at = login_node(login.name)
    made = [at.open_bridge([sys.executable, "-c", answers], "/", number) for number in range(12)]
    for each in made:
        each.close()


def test_the_job_of_a_notebook_that_is_gone_is_found_at_its_login_node(login: Host) -> None:
    cluster = start("astray", provider=over(login))
    row = registry.find("astray")
    assert row is not None
    cluster.close()
    registry.remove(row.id)
    [found], trouble = cloud_resources.find()
    assert not trouble
    assert str(found).endswith(f"in Slurm at {login.name}")
    assert found.is_orphaned
    found.remove()
    until(lambda: not queue())


TAKES_IT_AND_IS_SILENT = """\
sbatch --hold --comment="$0" --output=/dev/null --wrap=true >/dev/null
while squeue --me --noheader | grep -q .; do sleep 0.5; done
"""


def test_a_job_is_found_that_slurm_has_taken_without_a_word(
    login: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _, *others = SSHConnection.run.__defaults__ or ()
    monkeypatch.setattr(SSHConnection.run, "__defaults__", (data, 5.0, *others))
    at, marked = login_node(login.name), mark("0badcafe", "silent", "0badcafe-7")
    command = ["sh", "-c", TAKES_IT_AND_IS_SILENT, marked]
    try:
        job = event_loop.wait(submit(at, command, "0badcafe-7"))
        assert [each.id for each in event_loop.wait(queued_jobs(at))] == [job]
    finally:
        event_loop.wait(
            Slurm(login=login.name).release_cluster("0badcafe", f"Slurm at {login.name}", print)
        )
    until(lambda: not queue())


def test_what_is_wrong_with_a_login_node_is_said(login: Host) -> None:
    with pytest.raises(SkyError, match="Slurm at lab1 says: .*Invalid partition name"):
        start("lost", provider=over(login, partition="moon"))
    with pytest.raises(SkyError, match="login node closed cannot be reached: nothing listens"):
        start("lost", provider=Slurm(login="closed", python=sys.executable))
    assert registry.find("lost") is None
    assert {each.fix for each in diagnose(login_node(login.name))} == {""}
    assert not [*(login.home / STARTS).iterdir()]
