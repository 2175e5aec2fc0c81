"""Without a browser: IPython in a terminal, and notebooks run by papermill."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from jupyter_sky.cluster.inventory import orphans, registry
from tests.installed import skip_without

SETTINGS = "c = get_config()\nc.Sky.plugin = 'none'\nc.Sky.grace = 0.1\n"
END = "~ end of a cell ~"
LOAD = "%load_ext jupyter_sky"


@pytest.fixture
def ipython_folder(tmp_path: Path) -> Iterator[Path]:
    """A profile whose clusters end with the kernel that started them."""
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(SETTINGS)
    (profile / "ipython_kernel_config.py").write_text(SETTINGS)
    yield profile.parent
    rows = registry.rows()
    for row in rows:
        for machine in row.machines:
            while psutil.pid_exists(machine["pid"]):
                time.sleep(0.01)
    for each in orphans.find():
        if each.id in {row.id for row in rows}:  # others may be of other processes' tests
            each.remove()


def run(command: list[str], folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        input=given,
        env={**os.environ, "IPYTHONDIR": str(folder), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
    )


def type_in_terminal(folder: Path, *cells: str) -> tuple[list[str], str]:
    """Type cells into IPython and return what each showed, and what went to stderr."""
    ends = "".join(f"{cell}\n\n\nprint('{END}')\n" for cell in cells)
    command = ["IPython", "--no-banner", "--simple-prompt", "--colors=NoColor"]
    done = run(command, folder, f"{ends}exit\n")
    prompts = ("In [", "   ...: ")
    shown = done.stdout.split(f"{END}\n")
    return ["\n".join(_without(prompts, part)) for part in shown], done.stderr


def _without(prompts: tuple[str, ...], text: str) -> Iterator[str]:
    for line in text.splitlines():
        while line.startswith(prompts):
            line = line.partition(": ")[2]
        if line.strip():
            yield line


def test_a_terminal_shows_lines_of_plain_text(ipython_folder: Path) -> None:
    shown, trouble = type_in_terminal(
        ipython_folder,
        LOAD,
        "%%sky --nodes 2 --stdout all\nprint('hello')",
        "%sky status",
        "%sky down",
    )
    assert "\x1b" not in "".join([*shown, trouble])
    starting, ready = trouble.splitlines()
    assert starting.endswith(": starting 2 local nodes")
    assert ": 2 local nodes, 2 ranks on CPU, ready in " in ready
    assert sorted(shown[1].splitlines()) == ["0 │ hello", "1 │ hello"]
    assert " idle " in shown[2]
    assert shown[3].endswith(": ended; nothing is left running")


def test_a_terminal_shows_errors_and_goes_on(ipython_folder: Path) -> None:
    shown, _ = type_in_terminal(
        ipython_folder, LOAD, "%sky up --nodes 1", "%%sky\n1 / 0", "%%sky\nprint('still here')"
    )
    assert "ZeroDivisionError: division by zero" in shown[2]
    assert "site-packages" not in shown[2] and "magics.py" not in shown[2]
    assert shown[3].strip() == "still here"


def test_auto_needs_no_empty_line_in_a_terminal(ipython_folder: Path) -> None:
    shown, _ = type_in_terminal(
        ipython_folder,
        LOAD,
        "%sky up --nodes 1",
        "%sky auto on\nimport os\nprint(os.environ['SKYPILOT_NODE_RANK'])\n%sky auto off",
    )
    assert "\n0\nauto is off" in shown[2]


def test_a_background_run_is_a_line_in_a_terminal(ipython_folder: Path, tmp_path: Path) -> None:
    go_on = str(tmp_path / "go on")
    shown, _ = type_in_terminal(
        ipython_folder,
        LOAD,
        "%sky up --nodes 1",
        "%%sky --background\n"
        "import os, time\n"
        f"while not os.path.exists({go_on!r}): time.sleep(0.01)\n"
        "for number in range(3): print(number)",
        f"open({go_on!r}, 'w').close(); _.result()",
        "%sky logs",
    )
    assert len(shown[2].splitlines()) == 1
    assert shown[3].endswith("]: {}") and "\n" not in shown[3]
    assert shown[4].splitlines() == ["0", "1", "2"]


# papermill


def papermill(
    folder: Path, *cells: str, **parameters: Any
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """Run a notebook and return how that went, and its cells."""
    source, target = folder / "in.ipynb", folder / "out.ipynb"
    made = [nbformat.v4.new_code_cell(cell) for cell in cells]
    if parameters:
        made[0].metadata.tags = ["parameters"]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), source)
    given = [each for name, value in parameters.items() for each in ("-p", name, str(value))]
    command = ["papermill", str(source), str(target), "--no-progress-bar", *given]
    done = run(command, folder)
    ours = nbformat.read(target, as_version=4).cells
    return done, [cell for cell in ours if "papermill-error-cell-tag" not in str(cell.metadata)]


def text(cell: Any) -> str:
    """Return a cell's output as a frontend shows it that knows nothing but text."""
    return "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"] + "\n"
        for output in cell.outputs
        if output.output_type != "error"
    )


def test_papermill_runs_a_notebook_with_its_parameters(ipython_folder: Path) -> None:
    skip_without("torch")
    done, cells = papermill(
        ipython_folder,
        "nodes = 1",
        LOAD,
        "%%sky --nodes {nodes} --plugin torch --out total\n"
        "import torch, torch.distributed as dist\n"
        "value = torch.ones(1)\n"
        "dist.all_reduce(value)\n"
        "total = value.item()\n"
        "print('total', total)",
        "print(total)",
        "%sky down",
        nodes=2,
    )
    assert done.returncode == 0, done.stderr
    shown = [text(cell) for cell in cells]
    assert "2 local nodes, 2 ranks on CPU, group formed with torch" in shown[3]
    assert "total 2.0\n" in shown[3]
    assert shown[4] == "2.0\n"
    assert shown[5].endswith(": ended; nothing is left running\n")


def test_a_saved_notebook_shows_how_a_run_in_the_background_ended(ipython_folder: Path) -> None:
    done, cells = papermill(
        ipython_folder,
        LOAD,
        "%%sky --nodes 1 --background\nimport time\nprint('begun')\nwhile True: time.sleep(0.01)",
        "run = _\n%sky interrupt\nimport time\nwhile not run.done: time.sleep(0.01)",
        "%sky down",
    )
    assert done.returncode == 0, done.stderr
    shown = text(cells[-3])
    assert "stopped after" in shown and "running" not in shown, shown
    kinds = [kind for output in cells[-3].outputs for kind in output.get("data", {})]
    assert not any("widget" in kind for kind in kinds)


def test_papermill_fails_where_a_cell_fails(ipython_folder: Path) -> None:
    done, cells = papermill(
        ipython_folder,
        LOAD,
        "%%sky --nodes 2\nprint('before')\nraise ValueError('no data')",
        "print('never')",
    )
    assert done.returncode != 0
    assert "ValueError" in done.stderr and "no data" in done.stderr
    failed, after = cells[-2:]
    assert "before\n" in text(failed)
    [error] = [output for output in failed.outputs if output.output_type == "error"]
    assert "ValueError" in error.ename and "no data" in error.evalue
    assert after.execution_count is None and after.outputs == []
