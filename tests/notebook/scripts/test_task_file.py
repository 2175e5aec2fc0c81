"""``%sky launch``: task files of SkyPilot, what of them is used, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jupyter_sky.cluster.errors import TimedOut
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import ScriptFailed, UsageError
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.scripts.task_file import read_task
from tests.notebook.conftest import Notebook

TASK = """
name: tell
num_nodes: 2
workdir: project
envs:
  WORD: file
  SOURCE: input
  TARGET: data.txt
secrets:
  TOKEN: null
file_mounts:
  inputs/$TARGET: ${SOURCE}.txt
setup: |
  echo "setting up $WORD"
  sleep 0.1 && touch ready-$SKYPILOT_NODE_RANK
run: |
  ls ready-0 ready-1 inputs; cat inputs/data.txt
  echo "$WORD $TOKEN $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "input.txt").write_text("an input\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "t0ken")
    return tmp_path


def test_a_task_with_setup_and_files(notebook: Notebook, folder: Path) -> None:
    out = notebook.run("%sky launch task.yaml --nodes 3 --secret TOKEN --env WORD=line")
    assert "setting up line\n" in out
    head = [line for line in out.splitlines() if line.startswith("0 │ ")]
    assert [line for line in head if "ready-" in line] == ["0 │ ready-0", "0 │ ready-1"]
    assert "an input\n" in out
    assert all(f"{node} │ line t0ken {node} of 3\n" in out for node in range(3))
    # A cluster may have more nodes than a task needs, and setup can be left out.
    out = notebook.run("%sky launch task.yaml --no-setup --secret TOKEN --stdout head")
    assert "setting up" not in out
    assert "file t0ken 0 of 2\n" in out and "t0ken 1" not in out
    (folder / "few.yaml").write_text("resources:\n  disk_size: 100\nsetup: exit 9\nrun: echo ran")
    with pytest.raises(ScriptFailed, match="exit status 9"):
        notebook.run("%sky launch few.yaml")
    assert notebook.run("%sky launch few.yaml --no-setup") == "ran\n"
    # A value can be a secret: what is wrong with a folder is said without it.
    (folder / "t0ken").mkdir()
    (folder / "t0ken" / "out").symlink_to("/")
    (folder / "lost.yaml").write_text("file_mounts: {data: '${TOKEN}'}\nrun: ls")
    with pytest.raises(UsageError, match=r"out leads out of .*/\$\{TOKEN\}, to /, "):
        notebook.run("%sky launch lost.yaml --secret TOKEN")
    # In the background neither setup nor run is waited for; the one follows the other.
    launch = "get_ipython().run_line_magic('sky', 'launch {} --background')".format
    out = notebook.run(f"begun = {launch('task.yaml --secret TOKEN')}")
    assert "setting up" not in out
    notebook.run("begun.result()")
    said = notebook.run("print(begun.output)")
    parts = "0 │ setting up file\n", "0 │ an input\n", "0 │ file t0ken 0 of 2\n"
    assert re.search(r"(.*\n)*".join(parts), said)
    notebook.run(f"failing = {launch('few.yaml')}")
    with pytest.raises(ScriptFailed, match="exit status 9"):
        notebook.run("failing.result()")
    assert notebook.run("print(failing.output)") == "\n"
    (folder / "many.yaml").write_text("num_nodes: 9\nrun: echo")
    with pytest.raises(UsageError, match="num_nodes is 9, but cluster .* has 3 nodes: ask for"):
        notebook.run("%sky launch many.yaml")


@pytest.mark.parametrize("background", ["", " --background"])
def test_setup_and_run_have_one_time_limit(
    notebook: Notebook, folder: Path, background: str
) -> None:
    (folder / "slow.yaml").write_text("setup: sleep 1.5\nrun: sleep 1.5")
    launch = f"launch slow.yaml --timeout 2{background}"
    with pytest.raises(TimedOut, match="^the time limit of 2 s is over"):
        notebook.run(f"begun = get_ipython().run_line_magic('sky', {launch!r})")
        notebook.run("begun.result()")


def test_files_of_similar_names_are_all_there(notebook: Notebook, folder: Path) -> None:
    """Each as it was sent, also when the task is launched again."""
    (folder / "other.txt").write_text("another\n")
    (folder / "task.yaml").write_text(
        "workdir: project\nfile_mounts:\n  of/a.b: input.txt\n  of/a-b: other.txt\n"
        "  workdir: other.txt\nrun: cat kept of/a.b of/a-b workdir"
    )
    (folder / "project" / "kept").write_text("kept\n")
    for _ in range(2):
        out = notebook.run("%sky launch task.yaml")
        assert out == "kept\nan input\nanother\nanother\n"


def test_a_large_file_that_changes_here_during_the_setup_stays_as_it_was_sent(
    notebook: Notebook, folder: Path
) -> None:
    large = folder / "input.txt"
    large.write_text("a" * 2_000_000)
    (folder / "task.yaml").write_text(
        "workdir: project\nfile_mounts: {data: input.txt}\n"
        f"setup: head -c 2000000 /dev/zero > {large}\nrun: head -c 3 data"
    )
    assert notebook.run("%sky launch task.yaml") == "aaa"


def test_a_setup_knows_its_node(notebook: Notebook, folder: Path) -> None:
    (folder / "task.yaml").write_text(
        "num_nodes: 2\nsetup: |\n"
        '  if [ "$SKYPILOT_SETUP_NODE_RANK" = 1 ]; then echo second of '
        '$(wc -l <<< "$SKYPILOT_SETUP_NODE_IPS"); fi\n'
    )
    assert "second of 2\n" in notebook.run("%sky launch task.yaml")


def test_resources_are_options_of_a_cell(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "resources:\n"
        "  infra: aws/us-east-1/us-east-1b\n"
        "  accelerators: {A100: 8}\n"
        "  cpus: 8+\n"
        "  memory: 64\n"
        "  use_spot: true\n"
        "  autostop: {idle_minutes: 10}\n"
        "  max_hourly_cost: 12.5\n"
        "  ports: 8080\n"
        "num_nodes: 4\n"
        "service: {replicas: 2}\n"
    )
    task = read_task(file, {})
    assert task.options == (
        {
            "provider": "aws",
            "region": "us-east-1",
            "zone": "us-east-1b",
            "gpu": "A100:8",
            "cpus": "8+",
            "memory": "64",
            "spot": True,
            "idle_timeout": 600.0,
            "autostop": True,
            "max_price": 12.5,
            "nodes": 4,
        },
    )
    assert task.not_used == ("service", "resources.ports")
    assert task.name == "task"


@pytest.mark.parametrize(
    ("resources", "options"),
    [
        (
            "cpus: 4+\n  any_of: [{infra: local}, {infra: aws, use_spot: true}]",
            [("cheapest", "local", None, False), ("cheapest", "aws", None, True)],
        ),
        (
            "ordered:\n  - {infra: ssh}\n  - {infra: aws, accelerators: L4}",
            [("first", "ssh", None, False), ("first", "aws", "L4", False)],
        ),
        (
            "accelerators: {'A100:8', 'H100:4'}",
            [("cheapest", None, "A100:8", False), ("cheapest", None, "H100:4", False)],
        ),
        (
            "accelerators: {A100: 8, H100: 4}",
            [("cheapest", None, "A100:8", False), ("cheapest", None, "H100:4", False)],
        ),
        (
            "infra: aws\n  accelerators: ['L4:1', 'T4:1']",
            [("first", "aws", "L4:1", False), ("first", "aws", "T4:1", False)],
        ),
    ],
)
def test_resources_to_choose_from(
    tmp_path: Path, resources: str, options: list[tuple[str, str | None, str | None, bool]]
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"num_nodes: 2\nresources:\n  {resources}\n")
    found = [CellOptions(**each) for each in read_task(file, {}).options]
    assert [(each.selection, each.provider, each.gpu, each.spot) for each in found] == options
    assert {each.nodes for each in found} == {2}


def test_a_task_runs_on_the_resources_that_are_there(notebook: Notebook, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "resources:\n  ordered:\n    - {infra: local, memory: 100000+}\n    - {infra: local}\n"
        "run: echo it runs\n"
    )
    said = notebook.run(f"%sky launch {file}")
    assert "not local: " in said and "now local, which costs nothing" in said
    assert said.endswith("it runs\n")
    assert notebook.run(f"%sky launch {file}") == "it runs\n"


def test_what_cannot_be_had_is_called_as_in_the_file(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("resources: {cpus: 100000}\nrun: 'true'\n")
    with pytest.raises(UsageError, match=r"^`cpus` 100000 was asked .* or leave `cpus` out"):
        notebook.run(f"%sky launch {tmp_path}/task.yaml")
    with pytest.raises(UsageError, match="--memory 999999 was asked"):
        notebook.run(f"%sky launch {tmp_path}/task.yaml --cpus 1 --memory 999999")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("setpu: x\nrun: y", r"has keys that no task has: setpu \(did you mean setup\?\)"),
        ("resources: {acelerators: A100}", r"resources.acelerators \(did you mean accelerators"),
        ("run: [a]", "run should be text"),
        ("num_nodes: many", 'num_nodes takes a whole number of at least 1; "many" is not one'),
        (
            "resources: {infra: moon}",
            'resources.infra takes local, ssh, aws or slurm; "moon" is not one',
        ),
        ("resources: {any_of: [{1: 2}]}", r"has keys that no task has: resources.any_of\[0\].1"),
        ("resources: {accelerators: 8}", "should be the name of a GPU, like A100:8"),
        ("resources: {any_of: {infra: aws}}", "any_of should be a list of resources"),
        ("resources: {ordered: []}", "resources.ordered is empty: name resources, or leave"),
        ("resources: {ordered: [{infra: mars}]}", r"resources.ordered\[0\].infra takes local, ssh"),
        (
            "resources: {any_of: [{infra: aws}], ordered: [{infra: ssh}]}",
            "resources has any_of and ordered: keep one of them",
        ),
        ("envs: {A: null}", "leaves A without a value: set it here and add `--env A`"),
        (
            "envs: {A: null}\nsecrets: {B: null}",
            "leaves A and B without a value: set them here and add `--env A --secret B`",
        ),
        (
            "file_mounts: {/data: 's3://bucket/photos'}",
            "file_mounts /data is a bucket: leave it out, and add `--volume "
            "s3://bucket/photos:/data`",
        ),
        (
            "file_mounts: {/data: 'https://example.org/data.tar'}",
            "file_mounts /data is not a path of this computer: leave it out, and get it in `setup`",
        ),
        ("envs:\n  YES: 1", "a name in envs is read as True, as YAML has it: put it in quotes"),
        ("secrets: {1: x}", "a name in secrets is read as 1, as YAML has it: put it in quotes"),
        ("envs: {A B: 1}", "'A B' is no name of a variable: take letters"),
        ("envs: {A: [1]}", "the value of A should be text: put it in quotes"),
        ('envs: {A: "x\\0"}', "the value of A should be text"),
        ("envs: {DAY: 2024-02-30}", "looks like a date or number, and is none .*: put it in"),
        ("resources: {autostop: {idle_minuts: 1}}", r"autostop.idle_minuts \(did you mean idle"),
        ("resources: {infra: slurm/c1/gpus}", "of which slurm is understood here: .*--partition"),
        ("a: [", "line 1: this is no YAML"),
        ("run: a\n---\nrun: b", "has several tasks"),
        ("just text", "is no task file"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_task(file, {})


def test_what_skypilot_takes_too(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("---\nresources: {cloud: AWS, autostop: 1.5}\nrun: x\n---\n")
    assert read_task(file, {}).options == (
        {"provider": "aws", "idle_timeout": 90.0, "autostop": True},
    )
    file.write_text("resources: {infra: AWS/us-east-1, autostop: {idle_minutes: null}}")
    [options] = read_task(file, {}).options
    assert options["idle_timeout"] == 300.0


def test_what_autostop_says_that_is_not_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "resources: {autostop: {idle_minutes: 5, down: false, hook: sync.sh, wait_for: none}}"
    )
    task = read_task(file, {})
    assert task.options == ({"idle_timeout": 300.0, "autostop": True},)
    assert task.not_used == ("resources.autostop.hook", "resources.autostop.wait_for")
    file.write_text("resources: {autostop: {idle_minutes: 5, down: true}}")
    task = read_task(file, {})
    assert task.options == ({"idle_timeout": 300.0},)
    assert task.not_used == ()


def test_a_secret_is_no_argument(notebook: Notebook, folder: Path) -> None:
    with pytest.raises(UsageError, match="--secret takes names only"):
        notebook.run("%sky launch task.yaml --secret TOKEN=abc")
    with pytest.raises(UsageError, match="there is no variable NOT_SET in the environment here"):
        notebook.run("%sky launch task.yaml --secret NOT_SET")
    with pytest.raises(UsageError, match="leaves TOKEN without a value: .*`--secret TOKEN`"):
        notebook.run("%sky launch task.yaml")
    with pytest.raises(UsageError, match=r"nothing.yaml cannot be read \(No such file .*: name a"):
        notebook.run("%sky launch nothing.yaml")
    with pytest.raises(UsageError, match=r"tsak.yaml cannot .*: did you mean task.yaml\?"):
        notebook.run("%sky launch tsak.yaml")
    (folder / "lost.yaml").write_text("file_mounts: {data: lost.txt}\nrun: cat data")
    with pytest.raises(UsageError, match=r"file_mounts data: there is no .*lost.txt\."):
        notebook.run("%sky launch lost.yaml --cluster of-lost")
    (folder / "lost.yaml").write_text("file_mounts: {'a${TOKEN}': 'b${TOKEN}'}\nrun: ls")
    with pytest.raises(
        UsageError, match=r"file_mounts a\$\{TOKEN\}: there is no .*/b\$\{TOKEN\}\."
    ):
        notebook.run("%sky launch lost.yaml --cluster of-lost --secret TOKEN")
    (folder / "lost.yaml").write_text("workdir: ../${TOKEN}/code\nrun: ls")
    with pytest.raises(UsageError, match=r"there is no folder .*/\$\{TOKEN\}/code: name one"):
        notebook.run("%sky launch lost.yaml --cluster of-lost --secret TOKEN")
    assert registry.find("of-lost") is None  # it is said before anything is started
