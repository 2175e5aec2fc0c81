"""The guide to AWS runs, on what stands in for it.

``python -m tests.providers.aws.test_guide`` makes the outputs that it is saved with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import snapshots
from tests.guides.guides import names_no_machine, saved, text_of
from tests.paths import ROOT
from tests.providers.aws.stand_in.machines import Machines
from tests.waiting import PATIENCE

NAME = "aws"


def run(machines: Machines, clients: Clients, home: Path) -> nbformat.NotebookNode:
    """Run the guide as a user whose settings lead to the lab."""
    settings = {"subnet": machines.subnet(clients), "addresses": "private", "user": "root"}
    profile = home / ".ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(
        f"c = get_config()\nc.Sky.python = {sys.executable!r}\nc.Sky.aws = {settings!r}\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(home / ".ipython"),
        "JPY_SESSION_NAME": str(home / f"{NAME}.ipynb"),
    }
    notebook = saved(NAME)
    metadata = dict(notebook.metadata)
    config = Config({"KernelManager": {"transport_encryption": "auto"}})
    client = NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        config=config,
    )
    client.execute(env=env, cwd=str(home))
    notebook.metadata = metadata
    return notebook


def shows_what_it_says(notebook: nbformat.NotebookNode) -> None:
    assert not any("Traceback" in text_of(cell) for cell in notebook.cells)
    text = "\n".join(map(text_of, notebook.cells))
    for said in (
        "p4d.24xlarge   8 × A100",
        "account          123456789012",
        "nothing was started",
        "the placement group jupyter-sky-ID",
        "4 aws nodes, 4 ranks on CPU, group formed with torch",
        ", $0.84 an hour, ready in",
        "4 ranks have met",
        "5 aws nodes, 5 ranks on CPU, group formed with torch",
        "GB for at most about",
        "and keeps files on its disks",
        "; `%sky start",
        "ended; nothing is left running",
        "kept: the snapshot",
        "AWS's own bill has them",
    ):
        assert said in text, said


@pytest.fixture
def fresh(machines: Machines, clients: Clients, tmp_path: Path) -> Iterator[nbformat.NotebookNode]:
    yield run(machines, clients, tmp_path)
    for each in snapshots.every(clients):
        snapshots.remove(clients, each.name)


def test_it_shows_what_it_says(fresh: nbformat.NotebookNode) -> None:
    shows_what_it_says(fresh)


def test_its_saved_outputs_are_those_of_a_run() -> None:
    shows_what_it_says(saved(NAME))
    assert names_no_machine(NAME)


def main() -> None:
    """Run the guide and save it with its outputs."""
    import tempfile

    from tests.lab import Lab
    from tests.providers.aws.stand_in.account import Account

    account, lab = Account(), Lab.start(1)
    os.environ.update(account.environment)
    try:
        with tempfile.TemporaryDirectory() as home:
            os.environ.update(JUPYTER_SKY_HOME=home, TMPDIR=home)
            clients = Clients("us-east-1")
            machines = Machines(lab, account)
            notebook = run(machines, clients, Path(home))
            machines.close()
        nbformat.write(notebook, ROOT / "notebooks" / f"{NAME}.ipynb")
    finally:
        lab.stop()
        account.close()


if __name__ == "__main__":
    main()
