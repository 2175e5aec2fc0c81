"""The examples of the README do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

from tests.paths import ROOT

README = (ROOT / "README.md").read_text()
LOAD, CELL, SCRIPT, RETRIED, _ = re.findall(
    r"^```(?:python)?\n((?:%load_ext|%%sky|import jupyter_sky).*?)^```$",
    README,
    flags=re.MULTILINE | re.DOTALL,
)


def test_the_cell(opened) -> None:
    notebook = opened()
    assert LOAD == "%load_ext jupyter_sky\n"
    cell = notebook.succeed(CELL)
    assert re.fullmatch("".join(rf"epoch {i}: loss \d\.\d{{3}}\n" for i in range(5)), cell.stdout)
    assert notebook.value("type(model).__name__, images_seen") == ("Linear", [450] * 4)


def test_the_cell_that_runs_again(opened, tmp_path: Path) -> None:
    """A rank is killed between two checkpoints; the training ends with the same loss."""
    notebook = opened()
    notebook.succeed(f"import os\nos.chdir({str(tmp_path)!r})")
    killed = """    if step == 150 and checkpoint is None:
        rank = sky.instance_info().rank
        open(f"{rank} has logged", "w").close()
        while rank == 1:
            if os.path.exists("0 has logged"):
                os.kill(os.getpid(), 9)
"""
    before, log, after = RETRIED.partition("    sky.log(step=step, loss=loss)\n")
    cell = notebook.succeed(f"{before}{log}{killed}{after}")
    place = "checkpoints/run-1 of step 100; attempt 2 of 4 begins"
    assert re.search(rf"Lost: 50 steps and .*, since the checkpoint {place}\n", cell.stdout)
    with_loss = notebook.value("loss.item()")
    assert notebook.succeed(RETRIED).stdout == ""
    assert notebook.value("loss.item()") == with_loss


def test_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}    print(results, result, (a, b), scores, future.result())")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    trained = [f"trained on rank {rank}" for rank in range(4)]
    scores = [n**2 for n in range(100)]
    assert done.stdout == f"{trained} 25 (25, 81) {scores} 25\n", done.stderr


OTHER_TOOLS = """
import jupyter_sky as sky

@sky.compute
def f(n):
    return 10 * n

with sky.ComputePool(nodes=2) as pool:
{block}
    print(result, results, future.result(), len(done) + len(others))
"""


def test_what_other_tools_call_otherwise(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(from concurrent[^`]*)^```$", README, re.MULTILINE)
    script = tmp_path / "script.py"
    script.write_text(OTHER_TOOLS.format(block=indent(block, "    ")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    *each, last = done.stdout.splitlines()
    assert sorted(map(int, each)) == list(range(0, 80, 10)), done.stderr
    assert last == "10 [10, 10] 10 8"


def test_the_links() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    guides = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert guides - set(links) == set()


def test_the_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
