"""The options of ``%%sky`` and the commands of ``%sky``."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options.commands import COMMANDS
from jupyter_sky.notebook.options.definitions import CELL_OPTIONS, CellOptions
from jupyter_sky.notebook.options.lines import as_line, parse_cell, parse_line
from jupyter_sky.notebook.options.parser import HelpRequested


def given_in(line: str) -> dict[str, Any]:
    """What a line says beyond the defaults."""
    defaults = asdict(CellOptions())
    options = asdict(parse_cell(line))
    return {name: value for name, value in options.items() if value != defaults[name]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--nodes 4", {"nodes": 4}),
        ("--nodes=4", {"nodes": 4}),
        ("--num-nodes 4 --gpus L4:4", {"nodes": 4, "gpu": "L4:4"}),
        ("--sbatch '--nice=5 -x n7' -n 2", {"sbatch": "--nice=5 -x n7", "nodes": 2}),
        ("--sbatch=--exclusive", {"sbatch": "--exclusive"}),
        ("-n 4 -c train --use-spot", {"nodes": 4, "cluster": "train", "spot": True}),
        ("--gpu A100", {"gpu": "A100"}),
        ("--nodes 4  # don't forget", {"nodes": 4}),
        ("# here", {}),
        ("--sbatch '-x #1'#2 # c", {"sbatch": "-x #1#2"}),
        ("--cpus 8+ --memory 32", {"cpus": "8+", "memory": "32"}),
        ("--memory 32GB+", {"memory": "32+"}),
        ("--provider ssh --hosts gpu1,gpu2", {"provider": "ssh", "hosts": ("gpu1", "gpu2")}),
        ("--hosts gpu1 me@10.0.0.7:2222", {"hosts": ("gpu1", "me@10.0.0.7:2222")}),
        (
            "--provider aws --region us-east-1 --instance-type p4d.24xlarge --max-cost $40",
            {
                **{"provider": "aws", "region": "us-east-1"},
                **{"instance_type": "p4d.24xlarge", "max_cost": 40.0},
            },
        ),
        ("--plugin torch,keras", {"plugin": ("torch", "keras")}),
        ("--plugin none", {"plugin": ()}),
        ("--plugin jax,keras=jax", {"plugin": ("jax", "keras=jax")}),
        ("--pip numpy 'torch>=2,<3'", {"pip": ("numpy", "torch>=2,<3")}),
        (
            "--pip uvicorn[a,b]==1,numpy --pip pandas",
            {"pip": ("uvicorn[a,b]==1", "numpy", "pandas")},
        ),
        ("--procs-per-node 2", {"procs_per_node": 2}),
        ("--ranks all", {}),
        ("--ranks head", {"ranks": "head"}),
        ("--ranks 3", {"ranks": (3,)}),
        ("--ranks 2-3,0", {"ranks": (0, 2, 3)}),
        ("--ranks 0, 2-3 --spot", {"ranks": (0, 2, 3), "spot": True}),
        ("--stdout none", {"stdout": "none"}),
        ("--stdout 1-2", {"stdout": (1, 2)}),
        ("--display safe", {"display": "safe"}),
        ("--in model", {"in_names": ("model",)}),
        ("--in none", {"in_names": ()}),
        ("--out a,b --out b c", {"out": ("a", "b", "c")}),
        ("--out model:state,a", {"out": ("model:state", "a")}),
        ("--gather losses", {"gather": ("losses",)}),
        ("--background", {"background": True}),
        ("--timeout 90", {"timeout": 90.0}),
        ("--timeout 90s", {"timeout": 90.0}),
        ("--timeout 10m", {"timeout": 600.0}),
        ("--timeout 1.5h --idle-timeout 1h30m", {"timeout": 5400.0, "idle_timeout": 5400.0}),
    ],
)
def test_what_a_line_says(line: str, expected: dict[str, Any]) -> None:
    assert given_in(line) == expected


TIMES = "a time in seconds, or with s, m, h or d behind it, as in `--timeout 10m`"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--nodes four",
            'takes a whole number of at least 1, as in `--nodes 4`; "four" is not one.',
        ),
        ("--nodes 0", '"0" is not one.'),
        ("--nodes -1", '"-1" is not one.'),
        ("--nodes 2.5", '"2.5" is not one.'),
        ("--nodes", "as in `--nodes 4`; no value is given."),
        ("--nodes --spot", "as in `--nodes 4`; no value is given."),
        ("--workdir --spott", "no value is given."),
        ("--nodes -2", 'as in `--nodes 4`; "-2" is not one.'),
        ("--idle-timeout -5m", '"-5m" is not one.'),
        ("--nodes 4 8", '--nodes takes one value, as in `--nodes 4`: leave out "8".'),
        ("--nodes=4 8", '--nodes takes one value, as in `--nodes 4`: leave out "8".'),
        ("--nodes 4 --num-nodes 8", "--nodes is given 2 times: keep one of them."),
        ("--node 4", "--node is not an option of %%sky: did you mean `--nodes`?"),
        ("--NODES 4", "--NODES is not an option of %%sky: did you mean `--nodes`?"),
        ("--idletimeout=5m", "did you mean `--idle-timeout`?"),
        ("\N{EM DASH}nodes 4", "did you mean `--nodes`?"),
        ("--zzz", "--zzz is not an option of %%sky: `%sky -h` lists them."),
        ("4", '"4" belongs to no option of %%sky: did you mean `--nodes 4`?'),
        ("nodes 4", '"nodes" is an option without its hyphens: type `--nodes`.'),
        ("nodes=4", '"nodes=4" is an option without its hyphens: type `--nodes=4`.'),
        ("bash", '%%sky does not take "bash": type `--sh` for a shell script.'),
        ("train", '%%sky does not take "train": `%sky -h` shows what it takes.'),
        ("''", '%%sky does not take ""'),
        ("--spot yes", '--spot takes no value: leave out "yes".'),
        ("--spot=yes", "--spot takes no value: type it alone."),
        # That of `%sky up` is AWS's.
        (
            "--profile work",
            '--profile takes no value: leave out "work", or type `--aws-profile work` '
            "(profile of the AWS configuration).",
        ),
        (
            "--profile=work",
            "--profile takes no value: type it alone, or type `--aws-profile work` "
            "(profile of the AWS configuration).",
        ),
        ("--pip 'numpy", "a quotation mark is missing in `--pip 'numpy`: close it."),
        ("--pip >=2", '">=2" is not one.'),
        ("--gpu A1000", "did you mean A100"),
        ("--gpu L4:four", 'type "L4:4"'),
        ("--provider gcp", 'with commas between several, as in `--provider aws`; "gcp" is not'),
        ("--hosts gpu1 --provider aws", "type `--provider ssh`, or leave out --hosts."),
        ("--cpus many", 'as in `--cpus 8+`; "many" is not one.'),
        ("--memory 0", '"0" is not one.'),
        ("--cluster a/b", 'as in `--cluster train`; "a/b" is not one.'),
        ("--ranks 3-1", 'as in `--ranks 0,2-3`; "3-1" is not one.'),
        ("--ranks head,1", '"head,1" is not one.'),
        ("--ranks none", '"none" is not one.'),
        ("--ranks 0-9999999999", "is not one."),
        ("--stdout some", "--stdout takes `all`, `head`, `none`, or numbers of ranks"),
        ("--plugin torch none", '"torch,none" is not one.'),
        ("--sbatch --wait", "--sbatch takes options of sbatch, but none for nodes, tasks, "),
        ("--sbatch --requeue", "comment, output, array, requeue, wait, clusters, as in "),
        ("--sbatch '-M moon'", "--sbatch takes options of sbatch, but none for nodes, tasks, "),
        ("--out a-b", '--out takes names of variables, as in `--out model,losses`; "a-b" is not'),
        ("--out class", '"class" is not one.'),
        ("--out model:weights", '"model:weights" is not'),
        (
            "--out ,",
            "--out takes names of variables, as in `--out model,losses`; none is given.",
        ),
        ("--timeout soon", f'--timeout takes {TIMES}; "soon" is not one.'),
        ("--timeout 0s", '"0s" is not one.'),
        ("--timeout ''", '"" is not one.'),
        ("--max-cost free", 'as in `--max-cost 40`; "free" is not one.'),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(line: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_cell(line)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


AWKWARD = [
    *("4", "a", "-1", "1" * 5000, "1e999", "nan", "A100:8", ":", "2-0", "9-1000000000", "a@b", "$"),
    *("\u0663", "\ud800", "--", "\u2014nodes", "\0", "../..", "x" * 300),
]


@given(st.text())
def test_any_line_is_read_or_refused(line: str) -> None:
    for parse in (parse_cell, parse_line):
        try:
            parse(line)
        except (UsageError, HelpRequested) as answer:
            assert str(answer)


@given(st.lists(st.sampled_from([name for each in CELL_OPTIONS for name in each.names] + AWKWARD)))
def test_any_options_are_read_or_refused(words: list[str]) -> None:
    try:
        parse_cell(" ".join(words))
    except UsageError as error:
        assert str(error).endswith((".", "?"))


def test_defaults_hold_where_the_line_says_nothing() -> None:
    defaults = CellOptions(nodes=2, provider="ssh", timeout=60.0)
    assert parse_cell("--nodes 4", defaults) == CellOptions(nodes=4, provider="ssh", timeout=60.0)


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("", True),
        ("--cluster other --out x --stdout all --timeout 9 --pdb", True),
        ("--nodes 4", False),
        ("--cluster other --plugin none", False),
        ("--variable A=1", False),
        ("--max-price 2", False),
    ],
)
def test_only_what_says_something_of_a_cluster_is_held_against_it(line: str, alone: bool) -> None:
    assert parse_cell(line).concerns_run_alone is alone


def test_each_option_has_a_field_and_each_field_an_option() -> None:
    of_up = {each.field for each in COMMANDS["up"][1]}
    assert of_up | {each.field for each in CELL_OPTIONS} == {
        field.name for field in fields(CellOptions)
    }


@pytest.mark.parametrize("option", CELL_OPTIONS, ids=lambda option: option.name)
def test_the_example_of_each_option_can_be_typed(option: Any) -> None:
    value = getattr(parse_cell(f"{option.name} {option.example}"), option.field)
    assert value not in (None, (), False, math.inf)


@pytest.mark.parametrize("line", ["-h", "--help", "--nodes four -h"])
def test_help_of_a_cell_names_every_option(line: str) -> None:
    with pytest.raises(HelpRequested) as help:
        parse_cell(line)
    for option in CELL_OPTIONS:
        assert option.name in help.value.text
    # What `--out model:state` binds is a name that the user has not typed.
    assert "as model_state" in " ".join(help.value.text.split())


@pytest.mark.parametrize("line", ["", "-h", "--help"])
def test_help_names_every_command(line: str) -> None:
    with pytest.raises(HelpRequested) as help:
        parse_line(line)
    assert all(f"\n  {name} " in help.value.text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    with pytest.raises(HelpRequested) as help:
        parse_line(f"{command} --help")
    assert help.value.text.startswith(f"usage: %sky {command}")
    internal = {each.name for each in COMMANDS[command][1] if each.is_internal}
    assert not internal & set(help.value.text.split())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--nodes 4 --gpu L4:4 --cluster train",
        "--hosts me@gpu1:2,gpu2 --provider ssh --plugin none --procs-per-node 2",
        "--cpus 8+ --memory 32.5 --idle-timeout 1h30m --patience 45s --max-cost 12.5 --spot",
        "--pip 'torch>=2,<3,uvicorn[standard,http]' --plugin torch,jax --region us-east-1",
    ],
)
def test_a_line_comes_back_from_what_it_says(line: str) -> None:
    options = parse_cell(line)
    assert parse_cell(as_line(options)) == options
    assert sorted(as_line(options).split()) == sorted(line.split())


SCALE = {
    **{"nodes": None, "hosts": None, "max_price": None, "agreed": None},
    **{"discard": False, "cluster": None},
}
LOGS = {"ranks": None, "json": False, "follow": False, "tail": None, "save": None, "cluster": None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("down", {"name": None, "discard": False}),
        ("down train", {"name": "train", "discard": False}),
        ("status", {"name": None, "json": False}),
        ("status train --json", {"name": "train", "json": True}),
        ("logs", LOGS),
        ("logs 0,2-3", {**LOGS, "ranks": (0, 2, 3)}),
        ("logs all", {**LOGS, "ranks": "all"}),
        ("logs 3 --follow", {**LOGS, "ranks": (3,), "follow": True}),
        ("logs --tail 20 -f 0", {**LOGS, "ranks": (0,), "follow": True, "tail": 20}),
        ("logs 3 --save a/b.log", {**LOGS, "ranks": (3,), "save": "a/b.log"}),
        ("logs -c train 3", {**LOGS, "ranks": (3,), "cluster": "train"}),
        ("push model -c names", {"names": ("model",), "cluster": "names"}),
        ("pull names --ranks all", {"names": ("names",), "ranks": "all", "cluster": None}),
        ("down name --discard", {"name": "name", "discard": True}),
        ("push model, data", {"names": ("model", "data"), "cluster": None}),
        ("push model -c train", {"names": ("model",), "cluster": "train"}),
        ("pull model --ranks 0,2", {"names": ("model",), "ranks": (0, 2), "cluster": None}),
        (
            "pull --ranks 0 model data --cluster train",
            {"names": ("model", "data"), "ranks": (0,), "cluster": "train"},
        ),
        ("restart", {"ranks": None, "cluster": None}),
        ("restart 1-2 --cluster train", {"ranks": (1, 2), "cluster": "train"}),
        ("attach train", {"name": "train"}),
        ("scale 4 --max-price 1.65", {**SCALE, "nodes": 4, "max_price": 1.65}),
        ("interrupt", {"run": None, "cluster": None}),
        ("auto on", {"switch": "on"}),
        ("auto", {"switch": None}),
        ("snapshot", {"remove": None, "cluster": None}),
        ("doctor", {"hosts": None, "provider": None, "login": None}),
        ("gc", {"name": None, "hosts": None, "unused_for": None}),
    ],
)
def test_commands(line: str, expected: dict[str, Any]) -> None:
    command, arguments = parse_line(line)
    assert (command, vars(arguments)) == (line.split()[0], expected)


def test_up_takes_the_options_of_a_cluster() -> None:
    assert parse_line("up --nodes 4 --gpu L4") == ("up", CellOptions(nodes=4, gpu="L4"))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("statsu", "%sky has no command statsu: did you mean `%sky status`?"),
        ("STATUS", "%sky has no command STATUS: did you mean `%sky status`?"),
        ("pulls", "%sky has no command pulls: did you mean `%sky pull model`?"),
        ("pulls loss", "%sky has no command pulls: did you mean `%sky pull loss`?"),
        ("fly", "%sky has no command fly: `%sky -h` lists them."),
        ("--nodes 4", "or behind a command: `%%sky --nodes 4` or `%sky up --nodes 4`."),
        ("up --out x", "--out is not an option of %sky up: `%sky up -h` lists them."),
        ("push", "%sky push takes names of variables, as in `%sky push model`; none is given."),
        ("push a.b", '"a.b" is not one.'),
        (
            "logs one",
            "%sky logs takes `all`, `head`, or numbers of ranks, as in `%sky logs 0,2-3`; "
            '"one" is not one.',
        ),
        ("pull a --ranks 0 b", "--ranks takes values with commas between them"),
        ("down name two", '%sky down does not take "two": `%sky down -h` shows what it takes.'),
        ("auto yes", '%sky auto takes `on`, `off` or `status`, as in `%sky auto on`; "yes" is'),
    ],
)
def test_what_is_wrong_with_a_command(line: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_line(line)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ("", "usage: %%sky [options]"),
        ("help", "usage: %%sky [options]"),
        ("help no_such_command", "usage: %%sky [options]"),
        ("down -h", "usage: %sky down [NAME]"),
        ("help down", "usage: %sky down [NAME]"),
        ("-h down", "usage: %sky down [NAME]"),
    ],
)
def test_help_is_asked_for_in_any_order(line: str, usage: str) -> None:
    with pytest.raises(HelpRequested) as asked:
        parse_line(line)
    assert str(asked.value).startswith(usage)


@pytest.mark.parametrize(
    "line",
    [
        "pip install --wheels a --wheels b,c einops timm",
        "pip --wheels a install --wheels b,c einops timm",
        "pip install einops timm --wheels a --wheels b,c",
    ],
)
def test_options_of_a_command_stand_anywhere(line: str) -> None:
    _, asked = parse_line(line)
    assert (asked.packages, asked.wheels) == (("einops", "timm"), ("a", "b,c"))
