"""Bad input: one line that says what to type instead, and nothing is left behind."""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.inventory import registry
from tests.conftest import processes_of
from tests.notebook.kernels import LiveNotebook


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory):
    """A notebook without a cluster."""
    notebook = LiveNotebook(tmp_path_factory.mktemp("empty") / "empty.ipynb")
    try:
        notebook.succeed("%load_ext jupyter_sky")
        yield notebook
    finally:
        notebook.close()


@pytest.fixture(autouse=True)
def nothing_left(home):
    """Each test leaves the clusters and processes that were there before, and no others."""
    before = {row.name for row in registry.rows()}, {each.pid for each in processes_of(home)}
    yield
    after = {row.name for row in registry.rows()}, {each.pid for each in processes_of(home)}
    assert after == before


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("%%sky --nods 4", "did you mean `--nodes`?"),
        ("%%sky --nodes four", "as in `--nodes 4`"),
        ("%%sky --nodes 0", "as in `--nodes 4`"),
        ("%sky forward", "as in `%sky forward 6006`"),
        ("%sky forward 70000", "a port from 1 to 65535"),
        ("%sky forward 6006", "no cluster is running"),
        ("%sky shell 3", "type `jupyter sky shell` in one, or open one with Terminal"),
        ("%%sky --nodes", "--nodes 4"),
        ("%%sky --nodes 99999999999", "10,000 at most"),
        ("%%sky --nodes 10000 --procs-per-node 10000", "ask for fewer"),
        ("%%sky --nodes 2 --gpu A10000", "did you mean"),
        ("%%sky --nodes 2 --gpu A100:none", "A100"),
        ("%%sky --nodes 2 --gpu H200:1000", "leave the GPU out"),
        ("%%sky --nodes 2 --cpus 100000", "leave --cpus out"),
        ("%%sky --nodes 2 --memory lots", "--memory 32+"),
        ("%%sky --nodes 2 --plugin troch", "torch"),
        ("%%sky --nodes 2 --plugin mig", "needs a profile: type it, as in `--plugin mig=3g.40gb`"),
        ("%%sky --nodes 2 --plugin mig=half", "profile='half' is no part of a GPU"),
        ("%%sky --nodes 2 --plugin keras", "as in `--plugin keras=torch`"),
        ("%%sky --nodes 2 --plugin huggingface=hf_x", "set `HF_TOKEN` in the notebook's env"),
        ("%%sky --nodes 2 --provider azure", "local"),
        ("%%sky --nodes 2 --env A=s3cret", "`--variable A=VALUE` gives ranks an environment var"),
        ("%%sky --nodes 2 --env HOME", "`--variable HOME` gives ranks an environment variable"),
        (
            "%%sky --nodes 2 --pip git+https://h.org/a.git",
            "write `'NAME @ git+https://h.org/a.git'`",
        ),
        ("%sky pip install ./a", "`pip wheel --no-deps -w wheels ./a` makes a wheel of it, and"),
        ("%%sky --nodes 2 --timeout soon", "--timeout 10m"),
        ("%%sky --nodes 2 --cluster 'my cluster'", "--cluster train"),
        ("%%sky --nodes 2 --out 2x", "--out model,losses"),
        ("%%sky --nodes 2 'quote", "close it"),
        ("%%sky", "as in `--nodes 4`"),
        ("%%sky --nodes 2 --in nowhere", "define it first"),
        (
            "%%sky --nodes 2 --out x --gather x",
            "`--out x` and `--gather x` would both be bound to x: leave one of them out.",
        ),
        (
            "%%sky --nodes 2 --out model:state,model_state",
            "`--out model:state` and `--out model_state` would both be bound to model_state",
        ),
        ("%sky pull m:state m_state", "would both be bound to m_state"),
        ("%sky dwon", "did you mean `%sky down`?"),
        ("%sky down", "none is running"),
        ("%sky down nothing", "no cluster nothing"),
        ("%sky logs", "`%%sky --nodes 4`"),
        ("%sky debug --rank x", "UsageError: --rank takes `all`, `head`, or numbers of ranks, as"),
        ("%%sky --num-nodes 2 3 --num-nodes 4", "UsageError: --num-nodes takes one value, as in"),
    ],
)
def test_what_cannot_be_is_one_line(empty: LiveNotebook, line: str, instead: str) -> None:
    cell = empty.run(f"{line}\npass" if line.startswith("%%") else line)
    assert cell.sentence.startswith("UsageError: ")
    assert instead in cell.sentence and "s3cret" not in cell.sentence
    assert cell.stdout == cell.stderr == ""
    assert cell.shown == []  # not that a cluster failed, which nobody has begun to start


def test_a_cell_that_does_not_compile_starts_nothing(empty: LiveNotebook) -> None:
    cell = empty.run("%%sky --nodes 2\nx = = 1")
    assert "SyntaxError" in cell.traceback
    assert "x = = 1" in cell.traceback
    assert "jupyter_sky" not in cell.traceback
    assert cell.shown == []


def test_torch_that_is_asked_for_but_not_installed(empty: LiveNotebook) -> None:
    empty.succeed("import sys\nsys.modules['torch'] = None  # Python's way to say it is not there")
    try:
        cell = empty.run("%%sky --nodes 2 --plugin torch\npass")
    finally:
        empty.succeed("del sys.modules['torch']")
    assert cell.sentence == (
        "UsageError: torch is not installed in this notebook's environment: "
        "run `%pip install torch`, or use `--plugin none` to do without it."
    )


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("%%sky --nodes 3", "`%sky scale 3` to change it"),
        ("%%sky --ranks 7", "ranks 0-1"),
        ("%%sky --stdout 7", "ranks 0-1"),
        ("%%sky --gather nowhere", "nowhere was asked for"),
        ("%%sky --out nowhere", "; it has "),
        ("%sky logs 7", "ranks 0-1"),
        ("%sky restart 7", "ranks 0-1"),
    ],
)
def test_what_a_running_cluster_has_not_is_one_line(
    pair: LiveNotebook, line: str, instead: str
) -> None:
    cell = pair.run(f"{line}\npass" if line.startswith("%%") else line)
    assert instead in cell.sentence
    assert pair.value("'nowhere' in globals()") is False


def test_a_name_that_cannot_travel_is_named_with_its_path(pair: LiveNotebook) -> None:
    pair.succeed("import threading\nconfig = {'handlers': [threading.Lock()]}")
    cell = pair.run("%%sky\nprint(config)")
    assert cell.sentence.startswith("UsageError: config['handlers'][0] cannot be sent")
    assert "Create config inside the cell" in cell.sentence


def test_a_value_that_cannot_come_back_is_named(pair: LiveNotebook) -> None:
    cell = pair.run("%%sky --out found\nimport threading\nfound = {'lock': threading.Lock()}")
    assert "found['lock'] cannot be brought to the notebook" in cell.sentence
    assert "rank" in cell.sentence and "%sky pull" not in cell.sentence


def test_a_value_that_this_notebook_cannot_make_is_one_line(pair: LiveNotebook) -> None:
    cell = pair.run(
        "%%sky --out thing\n"
        "import sys, types\n"
        "only_there = sys.modules['only_there'] = types.ModuleType('only_there')\n"
        "exec('class Thing: pass', vars(only_there))\n"
        "thing = only_there.Thing()"
    )
    assert "thing" in cell.sentence
    assert "only_there" in cell.sentence
