"""``%sky export``: a script of plain Python, which does what the notebook does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.programs.export import export_script
from tests.lab import wheels
from tests.notebook.programs.conftest import Terminal, write_notebook

CELLS = (
    "%%time\n%load_ext jupyter_sky\n%matplotlib inline",
    "from __future__ import annotations\nscale = 3\ndef times(x):\n    return x * scale",
    '''%%sky --nodes 2 --gather ranks --stdout all
import jupyter_sky as sky
text = """one
  two
three"""
rank = sky.instance_info().rank
ranks = times(rank + 1)
kept = [rank]''',
    "ranks, 'here'",
    "%%sky --ranks 1 --out total\nkept.append(scale)\ntotal = sum(kept)\nprint(text)\ntotal",
    "%time scale = 10\nprint(total, [each for each in ranks])",
    "%%sky\ntimes(rank + 1)",
)
CALLS = """\
import sys
import jupyter_sky as sky

@sky.compute
def words():
    return sys.argv[1:]

with sky.ComputePool(provider=sky.Local(), nodes=1) as pool:
    print(sky.gather(*(words() for _ in range(3))) >> pool)
"""
SHOWN = ["([3, 6], 'here')", "one", "  two", "three", "4", "4 [3, 6]", "10"]


def shown(text: str) -> list[str]:
    """What a program printed beside the lines of its cluster, times, and numbers of outputs."""
    others = re.compile(r".* local nodes|CPU times: |Wall time: ")
    lines = [line for line in text.splitlines() if not others.match(line)]
    return [line.partition("]: ")[2] if line.startswith("Out[") else line for line in lines]


def test_the_script_does_what_the_cells_do(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(tmp_path / "train.ipynb", *CELLS)
    ran = terminal.sky("run", "train.ipynb")
    assert shown(ran.stdout) == SHOWN, ran.stderr
    done = terminal.sky("export", "--notebook", "train.ipynb")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "wrote train.py: `python train.py` runs it; left out: %%time (cell 1), %matplotlib inline "
        "(cell 1) and %time (cell 6)\n"
    )
    script = (tmp_path / "train.py").read_text()
    assert "with sky.ComputePool(\n    provider=sky.Local(),\n    nodes=2,\n) as pool:" in script
    again = terminal.python("train.py")
    assert again.returncode == 0, again.stderr
    assert shown(again.stdout) == SHOWN
    assert registry.rows() == []


def test_the_script_finds_its_arguments_on_every_rank(terminal: Terminal, tmp_path: Path) -> None:
    cells = (
        "%load_ext jupyter_sky\nimport sys",
        "%%sky --nodes 2 --gather there\nimport sys\nthere = sys.argv[1:]",
        "print(sys.argv[1:], there)",
    )
    write_notebook(tmp_path / "train.ipynb", *cells)
    words = ["--lr", "0.1", "a file"]
    said = f"{words} {[words, words]}"
    ran = terminal.sky("run", "train.ipynb", "--", *words)
    assert ran.stdout.splitlines()[-1] == said, ran.stderr
    assert terminal.sky("export", "--notebook", "train.ipynb").returncode == 0
    done = terminal.python("train.py", *words)
    assert done.stdout.splitlines()[-1] == said, done.stderr


def test_each_call_of_a_program_finds_its_arguments(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    done = terminal.python("calls.py", "--lr", "0.1")
    assert done.stdout.splitlines()[-1] == str((["--lr", "0.1"],) * 3), done.stderr


@pytest.mark.parametrize(
    ("end", "status", "out", "err"),
    [
        ("import sys\nsys.exit(3)", 3, [], ""),
        ("raise SystemExit('no data')", 1, [], "no data"),
        ("kept = 5\nexit()", 0, ["[5, 5]"], ""),
        ("exit(3)", 3, [], ""),
    ],
)
def test_the_script_ends_as_the_code_on_ranks_wants_it(
    terminal: Terminal, tmp_path: Path, end: str, status: int, out: list[str], err: str
) -> None:
    cells = (f"%%sky --nodes 2 --gather kept\nkept = 1\n{end}", "print(kept)")
    write_notebook(tmp_path / "train.ipynb", *cells)
    ran = terminal.sky("run", "train.ipynb")
    assert ran.returncode == status and shown(ran.stdout) == out, ran.stderr
    assert terminal.sky("export", "--notebook", "train.ipynb").returncode == 0
    done = terminal.python("train.py")
    assert done.returncode == status, done.stderr
    assert shown(done.stdout) == out and done.stderr.strip() == err
    assert registry.rows() == []


def test_what_it_has_written_is_written_again(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", "x = 5\nx")
    for _ in range(2):
        assert terminal.sky("export", "out.py", "--notebook", "a.ipynb").returncode == 0
    assert terminal.python("out.py").stdout == "5\n"
    (tmp_path / "out.py").write_text("mine = 1")
    done = terminal.sky("export", "out.py", "--notebook", "a.ipynb")
    assert done.returncode == 2 and "out.py is there, and is not of" in done.stderr
    assert (tmp_path / "out.py").read_text() == "mine = 1"


def test_the_pool_is_as_the_cell_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that only the environment has is not written down; its name is the notebook's."""
    monkeypatch.setenv("TOKEN", "a secret")
    line = "%%sky --hosts gpu1,gpu2:4 --gpu L4:2 --plugin jax --pip einops --cluster train"
    line += " --variable TOKEN --variable N=3 --volume s3://bucket/photos:/data:ro"
    wheels.write(tmp_path, "greeting", "1.0")
    line += f" --wheels {tmp_path}"
    notebook, target = write_notebook(tmp_path / "a.ipynb", f"{line}\n1"), tmp_path / "a.py"
    said = export_script(notebook, str(target), ClusterFactory(Sky()))
    assert said.endswith("; left out: --cluster (cell 1)")
    script = target.read_text()
    compile(script, "a.py", "exec")
    assert "a secret" not in script
    for each in (
        "provider=sky.SSH(hosts=['gpu1', 'gpu2:4'])",
        "accelerator='L4:2'",
        "plugins=[sky.plugins.jax()]",
        f"sky.Image(pip=['einops'], pip_indexes=[sky.PipIndex(url='{tmp_path}')], "
        "env={'TOKEN': os.environ['TOKEN'], 'N': '3'})",
        "volumes=['s3://bucket/photos:/data:ro']",
    ):
        assert each in script
    assert "name=" not in script  # it would be refused beside the notebook's cluster


def test_options_without_a_place_in_a_script_are_listed(tmp_path: Path) -> None:
    """Those that it has are not, though a later cell repeats them."""
    cells = [
        "%%sky --nodes 2 --provider aws,slurm --spot-or-on-demand --autostop --idle-timeout 1h "
        "--region us-east-1,us-west-2 --max-cost 40 --pip einops\nmodel = 1",
        "%%sky --pip einops --background\n1",
        "%%sky --pip rich --plugin jax --variable A=1 --volume s3://b/photos:/data:ro\n1",
        "%%sky --gather model:state\nmodel = 2",
        "%%sky --in model\n1",
        "%%sky --in none\n1",
    ]
    notebook, target = write_notebook(tmp_path / "a.ipynb", *cells), tmp_path / "a.py"
    said = export_script(notebook, str(target), ClusterFactory(Sky()))
    assert said.endswith(
        "; left out: --provider (cell 1), --region (cell 1), --spot-or-on-demand (cell 1), "
        "--autostop (cell 1), --background (cell 2), --plugin (cell 3), --pip (cell 3), --volume "
        "(cell 3), --variable (cell 3), --in (cell 5) and --in (cell 6)"
    )
    script = target.read_text()
    assert "max_cost=40.0" in script
    assert 'model_state = [each["model_state"] for each in results]' in script


@pytest.mark.parametrize(
    "cells",
    [
        ["%sky up", "x = 1"],
        ["%sky up --hosts a,b", "%%sky --nodes 2\n1"],
        ["%sky up --nodes 2", "%%sky --provider local --nodes 2\n1"],
    ],
    ids=["without a cell on ranks", "the nodes of hosts", "the usual provider"],
)
def test_what_a_script_has_is_not_listed(tmp_path: Path, cells: list[str]) -> None:
    notebook = write_notebook(tmp_path / "a.ipynb", *cells)
    said = export_script(notebook, str(tmp_path / "a.py"), ClusterFactory(Sky()))
    assert "left out" not in said


def test_ranks_go_on_with_what_they_have_brought_back(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "train.ipynb",
        "import jupyter_sky as sky\nweights = [0]",
        "%%sky --nodes 2 --plugin none --out weights --gather results\n"
        "weights.append(1)\nalias = weights\nresults = sky.instance_info().rank",
        "print(weights, results)",
        "%%sky --stdout all --out total\nweights.append(2)\nresults += 1\n"
        "total = sum(weights)\nprint(alias is weights, alias, results)",
        "print(weights, total)\npool = 1  # and show_value is the script's",
        "%%sky --out weights\nweights.append(pool)",
        "weights = weights + [5]",
        "%%sky\nprint(weights, alias)\nraise ValueError('which the notebook expects')",
        tags=["raises-exception"],
    )
    done = terminal.sky("export", "--notebook", "train.ipynb")
    assert "; cell 4 goes on with the ranks' own results and weights, not" in done.stdout
    done = terminal.python("train.py")
    lines = shown(done.stdout)
    assert sorted(lines[1:3]) == ["True [0, 1, 2] 1", "True [0, 1, 2] 2"], done.stderr
    lines[1:3] = []
    assert lines == ["[0, 1] [0, 1]", "[0, 1] 3", "[0, 1, 2, 1, 5] [0, 1, 2, 1]"]
    assert done.returncode == 0 and "which the notebook expects" in done.stderr


def test_names_with_types_are_those_of_every_cell(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "train.ipynb",
        "%%sky --nodes 1\nlater: int\nfor epoch in range(2):\n"
        "    läuft: (\n        dict[str, int]\n    ) = ({'a=b':\n  epoch})  # = the last\n"
        "def half(x: float = 3) -> float:\n    kept: float = x / 2\n    return kept",
        "%%sky\nprint(läuft, half(), 'later' in globals())\nlater: float = 2",
        "%%sky\nprint(later)",
    )
    done = terminal.sky("export", "--notebook", "train.ipynb")
    assert done.returncode == 0, done.stderr
    done = terminal.python("train.py")
    assert shown(done.stdout) == ["{'a=b': 1} 1.5 False", "2"], done.stderr


def test_a_line_that_goes_on_with_an_operator_is_no_magic(
    terminal: Terminal, tmp_path: Path
) -> None:
    write_notebook(tmp_path / "a.ipynb", "total = 7 \\\n% 4\nprint(total)", "%%sky --nodes 1\npass")
    done = terminal.sky("export", "--notebook", "a.ipynb")
    assert done.returncode == 0, done.stderr
    assert "total = 7 \\\n% 4\n" in (tmp_path / "a.py").read_text()


def test_a_cell_with_comments_alone_does_nothing(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(tmp_path / "a.ipynb", "%%sky --nodes 1\n# later", "print('end')\n%sky status")
    done = terminal.sky("export", "--notebook", "a.ipynb")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; left out: %sky status (cell 2)\n")  # as it is typed there
    assert "    # later\n    pass\n" in (tmp_path / "a.py").read_text()
    done = terminal.python("a.py")
    assert done.stdout.splitlines()[-1] == "end", done.stderr


# Since Python 3.14, `symtable` refuses it as well, before a function is made of it.
_AWAITS = "is no plain Python" if sys.version_info >= (3, 14) else "cannot be a function"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["%%sky --nodes 2\nawait x"], f"cell 1 {_AWAITS}"),
        (["%%sky --nodes 2\nfrom os import *"], "cell 1 cannot be a function (import * only"),
        (["%%sky --nodes 2 --background\n1", "await _"], "cell 2 is no plain Python (line 1: 'aw"),
        (["x = !ls"], "cell 1 is no plain Python (line 1"),
        (["!ls\nimport os\n%pylab\n\nx = !ls"], "cell 1 is no plain Python (line 5"),
        (["\n%%time\n%%sky --nodes 2\n%pwd\nx = !ls"], "cell 1 is no plain Python (line 5"),
        (
            ["%pwd\nif True:\n%pwd\nprint(1)"],
            "(line 4: expected an indented block after 'if' statement on line 2)",
        ),
        (["%%sky --nodes 2 --sh\nls"], "cell 1 is a shell block"),
        (["%%sky -c a --nodes 2\n1", "%%sky -c b\n2"], "cell 2 runs on another cluster (b)"),
        (
            ["%%sky --nodes 2 --out x\nx = [1]", "x.append(2)", "%%sky\nx += [3]"],
            "cell 2 changes x, which cell 1 has brought back and cell 3 uses on the ranks",
        ),
        (["%%sky\n1"], "no cluster is running: give"),
    ],
)
def test_what_has_no_place_in_a_script_is_said(tmp_path: Path, cells: list[str], said: str) -> None:
    notebook, target = write_notebook(tmp_path / "a.ipynb", *cells), tmp_path / "a.py"
    with pytest.raises(UsageError) as error:
        export_script(notebook, str(target), ClusterFactory(Sky()))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not target.exists()


def test_the_command_for_a_script_can_be_typed_as_it_is(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "a.ipynb", "print('here')")
    said = export_script(notebook, str(tmp_path / "my script.py"), ClusterFactory(Sky()))
    assert f"`python '{tmp_path}/my script.py'` runs it" in said
