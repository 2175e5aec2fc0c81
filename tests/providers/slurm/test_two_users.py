"""Two users with clusters of one name on the same nodes of Slurm: neither meets the other's."""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_sky.providers.node_defaults import BLOBS_OF, SHARED_MEMORY
from tests.cluster.test_other_users import attempts
from tests.providers.slurm.users import User, two_users
from tests.waiting import until

SECRET = "qv7-secret-token"

START = "%%sky --provider slurm --nodes 2 --time 10 --cluster train --stdout all"

RANKS_MEET = f"""\
{START} --variable API_TOKEN --sbatch --hold
import os, torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print('met', total.item(), os.getuid(), len(data), os.environ['API_TOKEN'])
"""

MACHINES = """\
import json
from jupyter_sky.cluster.inventory import registry
print('are', json.dumps([row.machines for row in registry.rows()]))"""

SHOWN_TO_ALL = """\
ps axeww -o pid,uid,args
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ
squeue --format=%all
squeue --steps --format=%all
scontrol --details show jobs
scontrol --details show steps
for job in $(squeue --noheader --format=%i); do scontrol write batch_script $job -; done
"""

REFUSED = (
    ("srun", "--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "id"),
    ("scancel", "--signal=USR1", "{job}"),
    ("scontrol", "update", "JobId={job}", "Comment=mine"),
)


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with two_users(API_TOKEN=SECRET) as both:
        for user in both:
            user.type("%load_ext jupyter_sky\ndata = bytes(1_000_000)")
        for user in both:
            user.shown()
        yield both


@pytest.fixture(scope="module")
def waiting(users: tuple[User, User]) -> str:
    """The number of Ada's job, which is held in the queue, while Bob's starts."""
    ada, bob = users
    bob.type(f"{START} --plugin none\nimport os\nprint('is', os.getuid(), len(data))")
    ada.type(RANKS_MEET)
    return until(lambda: next((job for job, state, _ in jobs(ada) if state == "JobHeldUser"), ""))


@pytest.fixture(scope="module")
def shown(waiting: str, users: tuple[User, User]) -> tuple[str, str]:
    """What the cells of Ada and Bob have shown, whose clusters are up then."""
    ada, bob = users
    [(_, _, mark)] = jobs(ada, seen_by=bob)
    for node in range(2):
        # What can be foreseen of a name on the node, somebody may take before.
        name = BLOBS_OF.format(f"{mark.split(':')[1]}-{waiting}{0:05}{node:05}")
        assert bob.run("mkdir", str(SHARED_MEMORY / name)).returncode == 0
    assert ada.run("scontrol", "release", waiting).stdout == ""
    return ada.shown(), bob.shown()


def jobs(of: User, seen_by: User | None = None) -> list[list[str]]:
    """Return number, reason and comment of each job of a user."""
    command = ["squeue", "--noheader", f"--user={of.number}", "--format=%i %r %k"]
    return [line.split() for line in (seen_by or of).run(*command).stdout.splitlines()]


def machines(user: User) -> list[dict[str, Any]]:
    """Return the machines of the user's only cluster."""
    [found] = json.loads(user.cell(MACHINES).rpartition("are ")[2].splitlines()[0])
    return list(found)


def ports(user: User) -> list[int]:
    """Return where agents of the user's listen to each other."""
    return [int(node["port"]) for machine in machines(user) for node in machine["nodes"]]


def own_folder(user: User) -> Path:
    """Return where the package keeps what it knows of the user's clusters."""
    return user.home / ".local" / "share" / "jupyter-sky"


def below(*places: Path) -> list[Path]:
    """Return these folders, and everything in them, but for what SQLite has for moments."""
    there = [path for place in places for path in (place, *place.rglob("*"))]
    return [path for path in there if not path.name.startswith("registry.sqlite-")]


def open_to_others(paths: list[Path]) -> list[Path]:
    """Return those that their own mode does not keep others from, but for SQLite's file."""
    closed = [each for each in paths if each.name != "registry.sqlite" and not each.is_symlink()]
    return [path for path in closed if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def listening(user: User) -> dict[str, list[set[tuple[str, int]]]]:
    """Return what processes of the user's listen at, of those of each kind that do."""
    found = defaultdict(list)
    for process in user.processes():
        connections = process.net_connections("tcp")
        heard = {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}
        if heard:
            found[kind_of(process)].append({(each.ip, each.port) for each in heard})
    return found


def kind_of(process: psutil.Process) -> str:
    command = process.cmdline()
    if "jupyter_sky.node" in command:
        return "agent"
    return "rank" if "jupyter_sky.node.forking.fork_server" in command else process.name()


def test_nobody_else_reads_what_a_job_in_the_queue_has(
    waiting: str, users: tuple[User, User]
) -> None:
    ada, bob = users
    paths = below(own_folder(ada))
    there = {path.name: path for path in paths}
    assert {"registry.sqlite", "owner", "job.sh", "specs.json"} <= there.keys()
    assert SECRET in there["specs.json"].read_text()
    assert attempts([*map(str, paths)], [], bob.number) == []
    assert not open_to_others(paths)


def test_both_work(shown: tuple[str, str], users: tuple[User, User]) -> None:
    ada, bob = users
    assert shown[0].count(f"met 2.0 {ada.number} 1000000 {SECRET}") == 2, shown[0]
    assert shown[1].count(f"is {bob.number} 1000000") == 2, shown[1]


def test_neither_sees_or_cleans_up_what_is_the_others(
    shown: tuple[str, str], users: tuple[User, User]
) -> None:
    for user in users:
        user.type("%sky status\n%sky gc")
    for user in users:
        said = user.shown()
        assert said.count("train") == 1 and "nothing was left behind" in said, said
    for user in users:
        assert [reason for _, reason, _ in jobs(user)] == ["None"]
        assert "True" in user.cell("%%sky\nprint('data' in globals())")


def test_a_neighbour_on_a_node_opens_and_reaches_nothing(
    shown: tuple[str, str], users: tuple[User, User]
) -> None:
    ada, bob = users
    paths = below(own_folder(ada), *ada.folders())
    names = {path.name for path in paths}
    assert {"agent.sock", "spec.json", "journal", "peers.pem", "logs"} <= names
    assert any(path.is_relative_to(SHARED_MEMORY) for path in paths)
    assert not open_to_others(paths)
    processes = [f"/proc/{process.pid}/" for process in ada.processes()]
    inner = [path + name for path in processes for name in ("environ", "fd", "mem", "cwd")]
    assert attempts([*map(str, paths), *inner], ports(ada), bob.number) == []
    # Nor does it help to show a certificate of another cluster.
    first, _ = machines(bob)
    certificate = f"{first['folder']}/peers.pem"
    assert attempts([], ports(ada), bob.number, certificate) == []
    own = ports(bob)[1]
    assert attempts([], [own], bob.number, certificate) == [["answered", own]]


def test_nothing_secret_is_shown_to_all(
    waiting: str, shown: tuple[str, str], users: tuple[User, User]
) -> None:
    ada, bob = users
    said = bob.run("sh", "-c", SHOWN_TO_ALL).stdout
    assert f"JobId={waiting}" in said and f"UserId={ada.name}({ada.number})" in said
    assert "jupyter_sky.node.forking.fork_server" in said
    assert SECRET not in said and "PRIVATE KEY" not in said


def test_nothing_is_done_with_the_job_of_another_user(
    waiting: str, shown: tuple[str, str], users: tuple[User, User]
) -> None:
    _, bob = users
    for words in REFUSED:
        done = bob.run("timeout", "60", *(word.format(job=waiting) for word in words))
        assert done.returncode not in (0, 124), f"{words}: {done.stdout}"
    attached = bob.run("timeout", "60", "sattach", f"{waiting}.0").stdout
    assert attached.count("no tasks running") == 2, attached


def test_each_port_is_known(shown: tuple[str, str], users: tuple[User, User]) -> None:
    ada, bob = users
    heard = listening(ada)
    agents = sorted(each for listener in heard["agent"] for each in listener)
    assert agents == sorted(("127.0.0.1", port) for port in ports(ada))
    # Of torch's, as `.github/SECURITY.md` says: one of each rank, and where ranks meet.
    assert sorted(map(len, heard["rank"])) == [1, 2]
    assert {ip for each in heard["rank"] for ip, _ in each} == {"127.0.0.1"}
    # Those of srun are Slurm's own, which asks who comes.
    assert heard.keys() == {"agent", "rank", "srun"}
    # Without torch there is the port that a framework could take on the head; nobody answers there.
    assert [len(each) for each in listening(bob)["rank"]] == [1]


def test_down_ends_the_own_cluster_alone(shown: tuple[str, str], users: tuple[User, User]) -> None:
    ada, bob = users
    assert "nothing is left running" in ada.cell("%sky down train")
    until(lambda: not jobs(ada))
    until(lambda: not [path for each in ada.folders() for path in each.rglob("*")])
    assert bob.cell("%%sky\nprint('still', len(data))").count("still 1000000")
    assert "nothing is left running" in bob.cell("%sky down train")
    until(lambda: not jobs(bob))
