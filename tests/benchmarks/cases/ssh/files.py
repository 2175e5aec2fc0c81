"""Files on their way to a host and back, beside the tools that do nothing else."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.files.bring import Download, place_in
from jupyter_sky.notebook.project.sending import send_ahead, task_that_sends
from jupyter_sky.serialization.folders import FolderIndex, read_folder
from tests.benchmarks.cases.machines import cluster_on, switched_on
from tests.benchmarks.measure import Base, Row, Target, seconds
from tests.lab import missing

_MANY = 10_000
_SMALL = 2_000  # bytes of each of them
_LARGE = 1_000_000_000


def files(peers: bool) -> list[Row]:
    """Many small files and a large one, to a host and from it."""
    if reason := missing():
        return [Row("files over SSH", None, "", note=reason)]
    with tempfile.TemporaryDirectory() as folder, switched_on(1) as lab, cluster_on(lab) as cells:
        small, large = _make(Path(folder))
        rows = [_unchanged(small)]
        for what, source in ((f"{_MANY:,} files of 2 kB", small), ("1 GB in a file", large)):
            before = psutil.Process().memory_info()
            put = seconds(lambda source=source: _put(cells.cluster, source))
            after = psutil.Process().memory_info()
            got = Path(folder, "got")
            get = seconds(lambda source=source, got=got: _get(cells.cluster, source.name, got))
            own = ((after.rss - after.shared) - (before.rss - before.shared)) / 1e6
            tools = ("scp", "rsync")
            to_host = {tool: copy(tool, str(source), f"lab1:{tool}") for tool in tools}
            back = {tool: copy(tool, f"lab1:{tool}", f"{got}/{tool}") for tool in tools}
            rows += [
                Row(f"{what} to a host", put, "s", peers=to_host),
                Row(f"{what} from a host", get, "s", peers=back),
                Row(f"memory of its own that sending takes here, {what}", own, "MB", Target(100.0)),
            ]
            shutil.rmtree(got)
            for tool in tools:
                shutil.rmtree(lab.hosts[0].home / tool, ignore_errors=True)
    return rows


def _make(folder: Path) -> tuple[Path, Path]:
    """Write a folder of many small files, and one that has a large one."""
    small, large = folder / "small", folder / "large"
    for number in range(_MANY):
        path = small / f"{number // 100}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_SMALL // 2) + bytes(_SMALL // 2))
    large.mkdir()
    with (large / "file").open("wb") as file:
        for _ in range(_LARGE // 10**7):
            file.write(os.urandom(10**7))
    return small, large


def _unchanged(folder: Path) -> Row:
    """What `--workdir` costs before a cell if nothing has changed."""
    index = FolderIndex()
    whole = seconds(lambda: read_folder(folder, index=index))
    time.sleep(2.5)  # until its files have come to rest
    read_folder(folder, index=index)
    again = [seconds(lambda: read_folder(folder, index=index)) for _ in range(5)]
    what = f"look at an unchanged folder of {_MANY:,} files, as before each cell"
    base = Base("reading it", whole)
    return Row(what, statistics.median(again), "s", Target(0.5), base)


def _put(cluster: Cluster, source: Path) -> None:
    # Its history would be in a folder that is gone when this process ends.
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    with contextlib.redirect_stdout(io.StringIO()):  # how far it has come
        folder = read_folder(source, "put", source.name)
        [content] = send_ahead(shell, cluster, [folder], [0])
    run = cluster.run(task_that_sends(content, [0], "put"))
    run.follow()
    run.check()


def _get(cluster: Cluster, name: str, folder: Path) -> None:
    folder.mkdir()
    found = cluster.files.find(0, [name])
    inside: set[Path] = set()
    places = [Download(each, place_in(folder, each["name"], inside)) for each in found["files"]]
    cluster.files.bring(0, places, lambda count: None)


def copy(tool: str, source: str, target: str) -> float | str:
    """Return how long another tool takes, over a connection of its own."""
    if not (found := shutil.which(tool)):
        return "not installed"
    ssh = Path(os.environ["HOME"], ".ssh")
    key = ssh / "id_ed25519"
    options = ["-F", f"{ssh}/config", "-o", f"UserKnownHostsFile={ssh}/known_hosts"]
    options += ["-o", f"IdentityFile={key}"]
    words = (
        ["-O", "-r", "-q", *options] if tool == "scp" else ["-a", "-e", " ".join(["ssh", *options])]
    )
    return seconds(lambda: subprocess.run([found, *words, source, target], check=True))
