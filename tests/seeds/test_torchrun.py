"""Scripts for torchrun run on the nodes with the variables that SkyPilot sets."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.notebook.options import parse_cell
from tests.notebook.kernels import LiveNotebook
from tests.seeds.documents import blocks

MAIN = """\
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(10 ** dist.get_rank())
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook beside the folder that the scripts go to."""
    folder = tmp_path / "examples" / "mingpt"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(MAIN)
    # Where an environment is activated, its programs are found, on the nodes as in the kernel.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    notebook = LiveNotebook(tmp_path / "torchrun.ipynb", PATH=programs)
    try:
        notebook.succeed("%load_ext jupyter_sky")
        yield notebook
    finally:
        notebook.close()


@pytest.mark.parametrize(
    ("number", "port", "before"),
    [(1, 8008, r""), (3, 29500, r"Starting distributed training, head node: 127\.0\.0\.1\n")],
    ids=["torchrun", "torchrun with rendezvous"],
)
def test_a_script_runs_on_every_node(
    notebook: LiveNotebook, number: int, port: int, before: str
) -> None:
    script = textwrap.dedent(blocks("torchrun")[number].removeprefix("run: |\n"))
    script = script.replace(str(port), str(free_port(port)))
    cell = notebook.succeed(f"%%sky --nodes 2 --stdout all\n%%bash\n{script}")
    ranks = []
    for node in range(2):
        lines = re.findall(rf"^{node} │ (.*\n)", cell.stdout, flags=re.MULTILINE)
        said = re.fullmatch(rf"{before}rank ([01]) of 2: 11\n", "".join(lines))
        assert said, cell.stdout
        ranks.append(int(said[1]))
    # Without rendezvous the rank of the node decides, with it who comes first.
    assert sorted(ranks) == [0, 1]
    assert before or ranks == [0, 1]


def test_the_group_of_the_notebook_is_as_it_was(notebook: LiveNotebook) -> None:
    notebook.succeed(
        "%%sky --nodes 2\nimport torch, torch.distributed as dist\nrank = dist.get_rank()"
    )
    notebook.succeed(
        "%%sky\n!cd examples/mingpt && torchrun --standalone --nproc_per_node=1 main.py"
    )
    notebook.succeed(
        "%%sky --out found\ntotal = torch.ones(1)\ndist.all_reduce(total)\nfound = total.item()"
    )
    assert notebook.value("found") == 2.0


@pytest.mark.parametrize("number", [0, 2, 4])
def test_the_options_of_a_launch_are_those_of_a_cell(number: int) -> None:
    program, command, *words = shlex.split(blocks("torchrun")[number])
    assert (program, command) == ("sky", "launch")
    [script] = [word for word in words if word.endswith(".yaml")]
    words.remove(script)
    options = parse_cell(" ".join(words))
    assert options.cluster == script.removesuffix(".yaml")
    if len(words) > 2:
        assert (options.nodes, options.gpu, options.cpus) == (4, "L4:4", "8+")


def free_port(wanted: int) -> int:
    """Return a port that is free here: the one in the document, if nobody has it."""
    for port in (wanted, 0):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("", port))
            except OSError:
                continue
            return sock.getsockname()[1]
    raise OSError("this machine has no free port")
