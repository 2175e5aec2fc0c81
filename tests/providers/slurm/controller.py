"""A real Slurm on this machine: controller, nodes and munge."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.waiting import until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo")

# Newer versions of MariaDB have it where the second path says.
_TABLES = ("mysql/mysql_system_tables.sql", "mariadb/mariadb_system_tables.sql")

_CONF = """\
ClusterName=lab
SlurmctldHost={host}({address})
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
KillWait=5
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000,batch_sched_delay=0
GresTypes=gpu
PartitionName=main Nodes={nodes} Default=YES MaxTime=60 State=UP
PartitionName=closed Nodes=n1 State=DOWN
PartitionName=low Nodes={nodes} MaxTime=60 PriorityTier=0 PreemptMode=CANCEL GraceTime=8 State=UP
"""

_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={gpus} "
    "RealMemory=4000 Gres=gpu:a100:{gpus}\n"
)

_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={port}
StorageUser=root
StorageLoc=slurm
"""

_ACCOUNTS = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,limits,qos
"""

_DEVICES = ("null", "zero", "full", "random")
"""What stands for GPUs: any devices will do, as Slurm hands out their numbers."""


@contextlib.contextmanager
def real_slurm(
    address: str = "127.0.0.1",
    inside: Sequence[str] = (),
    on_nodes: Sequence[str] = (),
    accounts: Sequence[str] = (),
    nodes: int = 2,
    gpus: int = 2,
) -> Iterator[Path]:
    """Run Slurm at an address of this machine, and let commands find it; its folder.

    Tests are skipped where it cannot be run.

    Parameters
    ----------
    address
        Where the controller and the nodes are reached.
    inside
        The command before those of its daemons, as to start them in a namespace.
    on_nodes
        The command before that of each node, as to give it one of its own.
    accounts
        Commands of sacctmgr, where limits of accounts are to be enforced.
    nodes, gpus
        How many nodes there are, and how many GPUs and processors each has.
    """
    if os.getuid() or not all(shutil.which(each) for each in _PROGRAMS):
        pytest.skip("a real Slurm needs root, slurmctld, slurmd, slurm-client and munge")
    if accounts and not all(shutil.which(each) for each in ("slurmdbd", "mariadbd")):
        pytest.skip("accounts of a real Slurm need slurmdbd and mariadb-server-core")
    folder = Path(tempfile.mkdtemp(prefix="sky-slurm-"))
    folder.chmod(0o755)
    daemons: list[subprocess.Popen[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        try:
            names = [f"n{number}" for number in range(1, nodes + 1)]
            _configure(folder, address, names, gpus)
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            key, said = f"--key-file={folder}/munge.key", f"--log-file={folder}/munge.log"
            files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "seed")]
            there = f"--socket={folder}/munge.socket"
            _start(daemons, folder, "munged", "--foreground", "--force", key, said, there, *files)
            until((folder / "munge.socket").exists)
            if accounts:
                _start_database(daemons, folder)
                _say("sacctmgr", "--immediate", "--quiet", text="\n".join(accounts))
            _start(daemons, folder, *inside, "slurmctld", "-D")
            for node in names:
                _start(daemons, folder, *inside, *on_nodes, "slurmd", "-D", "-N", node)
            _await_nodes(folder, nodes)
            yield folder
        finally:
            # Nobody would end what a test has left that failed.
            _said("scancel", *_said("squeue", "--noheader", "--format=%i").split())
            until(lambda: not _said("squeue", "--noheader"))
            for daemon in reversed(daemons):
                daemon.terminate()
                if accounts:
                    # One that has lost the database waits for it.
                    daemon.wait()
            for daemon in daemons:
                daemon.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, address: str, names: Sequence[str], gpus: int) -> None:
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o400)
    controller, *ports = [_free_port() for _ in range(1 + len(names))]
    place = {"host": socket.gethostname(), "address": address}
    conf = _CONF.format(folder=folder, controller=controller, nodes=",".join(names), **place)
    for name, port in zip(names, ports, strict=True):
        conf += _NODE.format(name=name, port=port, gpus=gpus, **place)
    (folder / "slurm.conf").write_text(conf)
    if int(_said("slurmd", "-V").split()[-1].partition(".")[0]) >= 24:
        # Newer ones do not start without control groups otherwise, which a container lacks.
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    devices = (f"Name=gpu Type=a100 File=/dev/{each}\n" for each in _DEVICES[:gpus])
    (folder / "gres.conf").write_text("".join(devices))


def _start_database(daemons: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Start slurmdbd, and a server for it with little memory, whose tables nobody has to make."""
    (folder / "data").mkdir()
    port, dbd = _free_port(), _free_port()
    small = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--key-buffer-size=1M"]
    fast = ["--performance-schema=0", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0"]
    at = [f"--datadir={folder}/data", f"--socket={folder}/database.socket", f"--port={port}"]
    only = ["--bind-address=127.0.0.1", "--skip-grant-tables", "--user=root"]
    command = ["mariadbd", "--no-defaults", *at, *only, *small, *fast]
    # Its own tables as well: slurmdbd keeps procedures there, without which each limit is 0.
    [tables] = [
        file.read_bytes() for file in map(Path("/usr/share").joinpath, _TABLES) if file.exists()
    ]
    # And slurmdbd's: the client library of MariaDB 11.8.9 refuses each query after a first attempt
    # to connect that failed, as it does where the database is yet to be made.
    own = b"create database slurm;\ncreate database mysql;\nuse mysql;\n" + tables
    subprocess.run([*command, "--bootstrap"], input=own, capture_output=True, check=True)
    _start(daemons, folder, *command)
    until((folder / "database.socket").exists)
    conf = folder / "slurmdbd.conf"
    conf.write_text(_DATABASE.format(folder=folder, port=port, dbd=dbd))
    conf.chmod(0o600)
    with (folder / "slurm.conf").open("a") as file:
        file.write(_ACCOUNTS.format(folder=folder, dbd=dbd))
    _start(daemons, folder, "slurmdbd", "-D")
    until(lambda: "Cluster" in _said("sacctmgr", "show", "cluster"))


def _start(daemons: list[subprocess.Popen[bytes]], folder: Path, *command: str) -> None:
    with (folder / "daemons.log").open("ab") as log:
        daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))


def _await_nodes(folder: Path, nodes: int) -> None:
    try:
        until(lambda: _said("sinfo", "--noheader", "--format=%T %D").strip() == f"idle {nodes}")
    except AssertionError as error:
        error.add_note((folder / "daemons.log").read_text(errors="replace")[-5000:])
        raise


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def _say(*command: str, text: str) -> None:
    subprocess.run(command, input=text, capture_output=True, text=True)


def _free_port() -> int:
    """Return a port that nobody else is given: a daemon listens there seconds later."""
    while True:
        port = 24_000 + secrets.randbelow(8_000)  # below those that the system gives
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port


_given: set[int] = set()
