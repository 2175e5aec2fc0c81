"""``%config Sky``: what it takes, what it refuses, and what it changes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

import jupyter_sky as sky
from jupyter_sky.cluster.errors import RankLost, TimedOut
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.options.definitions import CLUSTER_OPTIONS, CellOptions
from jupyter_sky.notebook.options.lines import parse_cell
from tests.lab import wheels
from tests.notebook.conftest import Notebook


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("provider", "aws", "aws"),
        ("nodes", 4, 4),
        ("nodes", "4", 4),
        ("nodes", None, None),
        ("gpu", "L4:4", "L4:4"),
        ("cpus", 8, "8"),
        ("cpus", "8+", "8+"),
        ("memory", 32.5, "32.5"),
        ("hosts", ["gpu1", "gpu2"], ("gpu1", "gpu2")),
        ("hosts", "gpu1,gpu2", ("gpu1", "gpu2")),
        ("spot", True, True),
        ("plugin", "torch", ("torch",)),
        ("plugin", ["none"], ()),
        ("pip", ["transformers>=4,<5", "einops"], ("transformers>=4,<5", "einops")),
        ("idle_timeout", 1800, 1800.0),
        ("idle_timeout", "30m", 1800.0),
        ("max_cost", 40, 40.0),
        ("stdout", "all", "all"),
        ("stdout", [0, 2], (0, 2)),
        ("stdout", "0,2-3", (0, 2, 3)),
        ("display", "safe", "safe"),
        ("timeout", "1h", 3600.0),
        ("large", "500 MB", 5e8),
        ("large", 1000, 1000),
        ("large", "1.5GB", 1.5e9),
        ("grace", 5, 5.0),
        ("stop_deadline", 0.5, 0.5),
    ],
)
def test_what_it_takes(name: str, value: Any, expected: Any) -> None:
    sky = Sky()
    setattr(sky, name, value)
    assert getattr(sky, name) == expected
    assert getattr(Sky(config=Config({"Sky": {name: value}})), name) == expected


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "nodes",
            "four",
            "Sky.nodes takes a whole number of at least 1, as in `%config Sky.nodes = 4`; "
            '"four" is not one.',
        ),
        ("nodes", 0, '"0" is not one.'),
        ("nodes", True, '"True" is not one.'),
        ("nodes", [1, 2], '"1, 2" is not one.'),
        ("nodes", [], '"" is not one.'),
        ("gpu", "A1000", "did you mean A100"),
        ("provider", "gcp", 'as in `%config Sky.provider = "aws"`; "gcp" is not one.'),
        ("plugin", "torch none", '"torch none" is not one.'),
        ("display", "text", "Sky.display takes rich or safe, as in"),
        ("stdout", "some", "Sky.stdout takes `all`, `head`, `none`, or numbers of ranks"),
        ("grace", None, '`%config Sky.grace = 60`; "None" is not one.'),
        ("timeout", -1, '"-1" is not one.'),
        ("large", "much", 'Sky.large = "4GB"`; "much" is not one.'),
    ],
)
def test_what_it_refuses_in_one_sentence(name: str, value: Any, sentence: str) -> None:
    sky = Sky()
    with pytest.raises(UsageError) as error:
        setattr(sky, name, value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert getattr(sky, name) == getattr(Sky(), name)


def test_each_option_of_a_cluster_has_a_default() -> None:
    assert {each.field for each in CLUSTER_OPTIONS} - set(Sky.class_trait_names()) == {"cluster"}


def test_each_knob_has_help() -> None:
    for name, trait in Sky.class_traits(config=True).items():
        assert len(trait.help) > 20, name


def test_what_a_cell_says_comes_first() -> None:
    sky = Sky(nodes=4, gpu="L4", plugin="none", spot=True, stdout="all", timeout=60)
    assert sky.with_cluster_defaults(CellOptions(nodes=2)) == CellOptions(
        nodes=2, gpu="L4", plugin=(), spot=True
    )
    options = parse_cell("--timeout 5", sky.run_defaults())
    assert options == CellOptions(stdout="all", timeout=5.0, display="rich")


def test_the_help_of_a_switch_says_that_no_cell_turns_it_off() -> None:
    assert Sky.spot.help == (
        "Cheaper instances that AWS may take back. It holds for all cells: no option of a cell "
        "turns it off."
    )
    assert "A cell's own --nodes overrides it." in Sky.nodes.help


def test_an_error_about_settings_says_how_to_change_them(notebook: Notebook) -> None:
    """Nobody can leave out what nobody has typed."""
    notebook.run("%config Sky.autostop = True")
    sentence = (
        "AWS stops no spot instances: leave out --autostop or --spot. Here, --autostop is a "
        "setting: `%config Sky.autostop = False` turns it off."
    )
    for cell in ("%%sky --provider aws --spot\n1", "%sky up --provider aws --spot --dry-run"):
        with pytest.raises(UsageError) as error:
            notebook.run(cell)
        assert str(error.value) == sentence
    notebook.run("%config Sky.provider = 'aws'")
    notebook.run("%config Sky.max_cost = 40")
    with pytest.raises(UsageError) as error:
        notebook.run("%%sky --nodes 1\n1")
    assert str(error.value) == (
        "--max-cost ends machines with their disks, which --autostop keeps: leave out one of the "
        "two. Here, --max-cost and --autostop are settings: `%config Sky.max_cost = None` and "
        "`%config Sky.autostop = False` turn them off."
    )
    assert registry.rows() == []


def test_an_option_that_an_error_advises_is_not_said_to_be_turned_off(notebook: Notebook) -> None:
    notebook.run("%config Sky.hosts = 'nowhere.invalid'")
    with pytest.raises(UsageError) as error:
        notebook.run("%sky up --provider ssh --nodes 3")
    assert str(error.value) == (
        "3 nodes were asked for, and 1 host is named: name more with `--hosts`, or ask for fewer."
    )


def test_timeouts_are_those_of_the_code_unless_it_says_so() -> None:
    assert Sky().timeouts() == Timeouts()
    assert Sky(stop_deadline=1, form_deadline=2, start_deadline=3).timeouts() == Timeouts(3, 2, 1)


def test_config_shows_every_knob(notebook: Notebook) -> None:
    text = notebook.run("%config Sky")
    assert all(f"Sky.{name}=" in text for name in Sky.class_traits(config=True))
    assert "Number of nodes (1), like 4." in text


def test_config_refuses_in_one_sentence(
    notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        notebook.run("%config Sky.nodes = 'four'")
    assert [record.getMessage() for record in caplog.records] == [
        'Sky.nodes takes a whole number of at least 1, as in `%config Sky.nodes = 4`; "four" is '
        "not one."
    ]


def test_a_cell_without_options_starts_what_config_says(notebook: Notebook) -> None:
    notebook.run("%config Sky.nodes = 2")
    notebook.run("%config Sky.stdout = 'all'")
    assert notebook.run("%%sky\nprint('here')").count("│ here") == 2


def test_a_cluster_that_runs_stays_as_it_is(notebook: Notebook) -> None:
    notebook.run("%sky up --nodes 1")
    notebook.run("%config Sky.nodes = 3")
    assert notebook.run("%%sky\nprint('here')") == "here\n"
    notebook.run("%sky down")
    notebook.run("%sky up")
    assert "3 local nodes" in notebook.stderr


def test_a_cluster_that_was_lost_comes_back_as_it_was(notebook: Notebook) -> None:
    notebook.run("%sky up --nodes 1 --cpus 1")
    notebook.run("%config Sky.nodes = 3")
    before = registry.rows()[0]
    # While the cell runs: the next one would start another cluster as soon as that is known.
    agent = before.machines[0]["pid"]
    with pytest.raises(Exception, match="is lost"):
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    notebook.run("%%sky\nx = 1")
    [after] = registry.rows()
    assert after.id != before.id
    # All but the time since which it counts what it costs.
    assert {**after.spec, "meter": None} == {**before.spec, "meter": None}


@pytest.mark.parametrize("said", ["", "--nodes 2 ", "--plugin none "])
def test_a_cell_adds_to_a_cluster_that_comes_back(
    notebook: Notebook, tmp_path: Path, said: str
) -> None:
    wheels.write(tmp_path, "greeting", "1.0", greeting="WORD = 'hello'\n")
    wheels.write(tmp_path, "greeting", "2.0", greeting="WORD = 'hello'\n")
    wheels.write(tmp_path, "parting", "1.0", parting="WORD = 'bye'\n")
    notebook.run("%%sky --nodes 2 --variable A=1\npass")
    for version in ("1.0", "2.0"):
        notebook.run(f"%sky pip install greeting=={version} --wheels {tmp_path}")
    [row] = registry.rows()
    with pytest.raises(Exception, match="is lost"):
        agent = row.machines[0]["pid"]
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    asked = f"{said}--pip parting --wheels {tmp_path} --variable A=2 --variable B=3"
    look = "import greeting, os, parting\nprint(greeting.WORD, parting.WORD)"
    look += "\nprint(os.environ['A'], os.environ['B'])"
    assert notebook.run(f"%%sky {asked}\n{look}").endswith("hello bye\n2 3\n")
    assert "2 local nodes" in notebook.stderr  # which were started again
    assert notebook.run(f"%%sky {asked}\n{look}") == "hello bye\n2 3\n"
    with pytest.raises(UsageError, match="--variable"):
        notebook.run("%%sky --variable C=4\npass")


def test_a_cluster_comes_back_with_its_files_from_another_folder(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.write(tmp_path / "packages", "greeting", "1.0", greeting="WORD = 'hello'\n")
    (tmp_path / "requirements.txt").write_text("greeting\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    look = "import greeting, os\nprint(greeting.WORD)"
    asked = "--nodes 1 --env requirements.txt --wheels packages"
    assert notebook.run(f"%%sky {asked}\n{look}").endswith("hello\n")
    [row] = registry.rows()
    with pytest.raises(Exception, match="is lost"):
        agent = row.machines[0]["pid"]
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert notebook.run(f"%%sky\n{look}").endswith("hello\n")


@pytest.mark.parametrize("cell", ["--nodes 1", ""])
def test_a_cell_that_describes_a_cluster_starts_it_with_the_settings_of_now(
    notebook: Notebook, cell: str
) -> None:
    notebook.run("%%sky --nodes 1 --cpus 1\npass")
    [row] = registry.rows()
    with pytest.raises(Exception, match="is lost"):
        agent = row.machines[0]["pid"]
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    notebook.run("%config Sky.cpus = 2")
    notebook.run(f"%%sky {cell}\npass")
    [again] = registry.rows()
    assert again.spec["cpus"] == ("2" if cell else "1")


def test_settings_for_other_providers_make_a_lost_cluster_no_other_one(notebook: Notebook) -> None:
    notebook.run("%config Sky.hosts = ['gpu1', 'gpu2']\n%config Sky.region = 'us-east-1'")
    notebook.run("%sky up --provider local --nodes 1 --variable A=1")
    [row] = registry.rows()
    with pytest.raises(Exception, match="is lost"):
        agent = row.machines[0]["pid"]
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    assert notebook.run("%%sky --nodes 1\nimport os\nprint(os.environ['A'])").endswith("1\n")


@pytest.mark.parametrize("after", ["x = 1", "import os; os.kill(os.getpid(), 9)"])
def test_a_loss_that_no_cell_has_failed_with_is_said_once(notebook: Notebook, after: str) -> None:
    notebook.run("%sky up --nodes 1")
    with contextlib.suppress(RankLost):  # it is made whole in the background, which fails then
        notebook.run(f"%%sky\n{after}")
    [row] = registry.rows()
    os.kill(row.machines[0]["pid"], signal.SIGKILL)
    while row.name in (said := notebook.run("%sky status")) and " lost:" not in said:
        time.sleep(0.01)
    loss = f"cluster {row.name} is lost: the agent of rank 0 ended. What its ranks had is gone.\n"
    assert said.startswith(loss)
    again = notebook.run("%%sky\nprint('x' in globals())")
    assert again.endswith("False\n")
    assert " lost" not in again


def test_options_of_other_providers_do_not_hinder_local_nodes(notebook: Notebook) -> None:
    notebook.run("%config Sky.region = 'us-east-1'")
    notebook.run("%sky up --provider local")
    assert "1 local node," in notebook.stderr


def test_runs_end_at_the_usual_timeout(notebook: Notebook) -> None:
    notebook.run("%config Sky.timeout = 0.1")
    with pytest.raises(TimedOut):
        notebook.run("%%sky --nodes 1\nwhile True: pass")


def test_what_is_large_is_what_config_says(notebook: Notebook) -> None:
    notebook.run("%config Sky.large = '1MB'")
    notebook.namespace["data"] = bytes(2_000_000)
    with pytest.raises(UsageError, match=r"data .* `--allow-large`"):
        notebook.run("%%sky --nodes 1\nprint(len(data))")
    assert notebook.run("%%sky --allow-large\nprint(len(data))") == "2000000\n"


def test_the_grace_reaches_the_nodes(notebook: Notebook) -> None:
    notebook.run("%config Sky.grace = '2m'")
    notebook.run("%sky up --nodes 1")
    folder = Path(registry.rows()[0].machines[0]["folder"])
    assert json.loads((folder / "spec.json").read_text())["grace"] == 120.0


@pytest.mark.parametrize(("asked", "grace"), [(None, 3600.0), (1800.0, 3600.0), (43200.0, 43200.0)])
def test_hosts_stay_without_a_notebook_for_as_long_as_a_cell_says(
    asked: float | None, grace: float
) -> None:
    provider = ClusterFactory(Sky()).provider(CellOptions(hosts=("gpu1",), idle_timeout=asked))
    assert isinstance(provider, sky.SSH)
    assert provider.grace == grace


def test_unloading_takes_it_away(notebook: Notebook) -> None:
    notebook.run("%unload_ext jupyter_sky")
    assert not [each for each in notebook.shell.configurables if isinstance(each, Sky)]
    notebook.run("%load_ext jupyter_sky")


def ipython(folder: Path, settings: str, cell: str) -> str:
    """Run a cell in a terminal's IPython with an ``ipython_config.py``."""
    profile = folder / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(f"c = get_config()\n{settings}\n")
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", cell],
        env={**os.environ, "IPYTHONDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_ipython_config_sets_defaults(tmp_path: Path) -> None:
    settings = "c.Sky.nodes = 3\nc.Sky.plugin = ['none']"
    cell = "%load_ext jupyter_sky\nget_ipython().run_line_magic('config', 'Sky.nodes')"
    assert ipython(tmp_path, settings, cell).strip().endswith("]: 3")


def test_ipython_config_is_refused_in_one_sentence(tmp_path: Path) -> None:
    said = ipython(tmp_path, "c.Sky.nodes = 0", "%load_ext jupyter_sky").strip()
    assert said == (
        "UsageError: Sky.nodes takes a whole number of at least 1, as in `%config Sky.nodes = 4`; "
        '"0" is not one.'
    )
