"""``%sky export``: a plain Python script that does the same as a notebook's cells.

Each ``%%sky`` cell becomes a function that every rank of a pool calls. It declares the names that
it binds as global, so that the next function finds them, as cells do.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import parse_cell, parse_line
from jupyter_sky.notebook.options.plugins import make_plugins
from jupyter_sky.notebook.programs.cells import read_cells
from jupyter_sky.notebook.programs.left_out import left_out
from jupyter_sky.notebook.programs.returned import HIDE, hidden_names
from jupyter_sky.notebook.programs.source import ExportedCell, indented, python_cell
from jupyter_sky.notebook.project.image import image_of
from jupyter_sky.providers.spec import Image

_SHOW = '''
def show_value(value):
    """Print what a cell ends with, as a notebook does."""
    if value is not None:
        print(repr(value))
'''

_EXIT = re.compile(r"\b(exit|quit|SystemExit|argparse|parse_args)\b")
"""What is in code that may end a program."""

_MEASURES = re.compile(r"%%(time|prun|capture)(\s|$)")
"""Magics above a cell that run it as it is."""

_ENDED = """\
except sky.RemoteError as error:
    # Code on a rank has ended the program, perhaps: that is its end here, too.
    if error.failures[0].error["type"] != "SystemExit":
        raise
    raise SystemExit(*error.args) from None"""


def export_script(source: Path, target: str | None, factory: ClusterFactory) -> str:
    """Write the script, and return a sentence about it.

    Parameters
    ----------
    source
        The notebook, or a script with cells.
    target
        The file to write; by default named after ``source``.
    factory
        Completes the options of cells by the settings.

    Raises
    ------
    UsageError
        If a cell cannot be exported, or the file exists and was not written by this function.
    """
    steps, asked, missing = _read(source)
    hidden = hidden_names(steps, source)
    text = _script(steps, asked[0][1] if asked else None, factory, hidden)
    if any(step.options for step in steps):  # otherwise the script has no cluster
        missing = sorted([*missing, *left_out(asked, factory)], key=lambda each: each[0])
    file = Path(target or f"{source.stem}.py").expanduser()
    first = f"# Made of {source.name} by `%sky export`."
    try:
        if file.exists() and not file.read_text(errors="replace").startswith("# Made of "):
            raise UsageError(f"{file} is there, and is not of `%sky export`: name another file.")
        file.write_text(f"{first}\n\n{text}", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}.") from None
    said = f"wrote {file}: `python {shlex.quote(str(file))}` runs it"
    for number, names in hidden.items():
        own = format_list(names)
        said += f"; cell {number} goes on with the ranks' own {own}, not the script's"
    if missing:
        said += "; left out: " + format_list([f"{what} (cell {n})" for n, what in missing])
    return said


def _read(
    source: Path,
) -> tuple[list[ExportedCell], list[tuple[int, CellOptions]], list[tuple[int, str]]]:
    """Return the cells, the options of a cluster in them, and lines that cannot be exported."""
    steps: list[ExportedCell] = []
    asked: list[tuple[int, CellOptions]] = []
    missing: list[tuple[int, str]] = []
    for cell in read_cells(source):
        text = cell.text.lstrip()
        while _MEASURES.match(text):
            measure, _, text = text.partition("\n")
            missing.append((cell.number, measure))
        options, body = _options_of(cell.number, text)
        if options is None and body.lstrip().startswith("%%"):
            missing.append((cell.number, body.lstrip().partition("\n")[0]))
            continue
        above = cell.typed.count("\n") - body.count("\n")
        code, lines = python_cell(body, cell.number, options is not None, above)
        for line in lines:
            found = _started_by(line)
            if found is not None:
                asked.append((cell.number, found))
            elif not line.startswith("%load_ext jupyter_sky"):
                missing.append((cell.number, line))
        if options is not None:
            asked.append((cell.number, options))
            if options.cluster not in (None, asked[0][1].cluster):
                raise UsageError(
                    f"cell {cell.number} runs on another cluster ({options.cluster}), and a "
                    "script has one: export notebooks with one cluster, or type "
                    f"`jupyter sky run {source.name}`."
                )
        if code.text.strip():
            steps.append(ExportedCell(cell.number, code, options, cell.may_fail))
    return steps, asked, missing


def _options_of(number: int, text: str) -> tuple[CellOptions | None, str]:
    first, _, rest = text.partition("\n")
    if not re.match(r"%%sky(\s|$)", first):
        return None, text
    options = parse_cell(first.removeprefix("%%sky"))
    if options.sh:
        raise UsageError(
            f"cell {number} is a shell block, which a pool has not: run the notebook with "
            "`jupyter sky run`, or call bash in a cell of Python."
        )
    return options, rest


def _started_by(line: str) -> CellOptions | None:
    """Return the options with which a line starts a cluster, if it does."""
    if not re.match(r"%sky\s+up(\s|$)", line):
        return None
    options = parse_line(line.removeprefix("%sky"))[1]
    return options if isinstance(options, CellOptions) else None


def _script(
    steps: Sequence[ExportedCell],
    starting: CellOptions | None,
    factory: ClusterFactory,
    hidden: Mapping[int, Sequence[str]],
) -> str:
    parts = [*dict.fromkeys(line for step in steps for line in step.code.future)]
    on_ranks = [step for step in steps if step.options is not None]
    taken = frozenset[str]().union(*(step.code.binds | step.code.reads for step in steps))
    pool, results = _free("pool", taken), _free("results", taken)
    if hidden:
        parts.append("import contextlib")
    if any(step.may_fail for step in steps):
        parts.append("import traceback")
    if on_ranks:
        parts.append("import jupyter_sky as sky")
        if starting and starting.variable:
            parts.append("import os")
    if any(step.code.shows for step in steps):
        parts.append(_SHOW)
    if hidden:
        parts.append(HIDE)
    # Cells before the first one on the cluster need no cluster.
    first = steps.index(on_ranks[0]) if on_ranks else len(steps)
    parts += [_local(step) for step in steps[:first]]
    if on_ranks:
        assert starting is not None
        may_end = any(_EXIT.search(step.code.text) for step in steps)
        parts += [_function(step, may_end) for step in on_ranks]
        with_pool = [_with_pool(starting, factory, pool)]
        inside = [
            _local(step)
            if step.options is None
            else _call(step, hidden.get(step.number, ()), pool, results)
            for step in steps[first:]
        ]
        with_pool += [indented(each) for each in inside]
        if may_end:
            whole = "\n\n".join(part.strip("\n") for part in with_pool)
            with_pool = [f"try:\n{indented(whole)}\n{_ENDED}"]
        parts += with_pool
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _free(word: str, taken: frozenset[str]) -> str:
    """Return a name for the script's own use that no cell uses."""
    return word if word not in taken else _free(f"{word}_", taken)


def _local(step: ExportedCell) -> str:
    return f"# Cell {step.number}\n{_going_on(step, step.code.text)}"


def _going_on(step: ExportedCell, text: str) -> str:
    """Return the code of a cell so that the script goes on after its error, as the notebook may."""
    if not step.may_fail:
        return text
    return f"try:\n{indented(text)}\nexcept Exception:\n    traceback.print_exc()"


def _name(step: ExportedCell) -> str:
    return f"cell_{step.number}"


def _function(step: ExportedCell, may_end: bool) -> str:
    """Return a cell as a function; it may end the program, even successfully."""
    options, code = step.options, step.code
    assert options is not None
    timeout = f"(timeout={options.timeout:g})" if options.timeout else ""
    lines = [f"@sky.compute{timeout}"]
    ranks: tuple[int, ...] | None = None
    if options.ranks == "head":
        ranks = (0,)
    elif options.ranks != "all":
        ranks = options.ranks
    if shown := _shown(options, ranks):
        lines += [f"@sky.stdout(only={shown})", f"@sky.stderr(only={shown})"]
    lines.append(f"def {_name(step)}():")
    body = [f"global {', '.join(sorted(code.binds))}"] if code.binds else []
    if ranks is not None:
        body += [f"if sky.instance_info().rank not in {ranks!r}:", "    return None"]
    does = [code.text.rstrip("\n")]
    if not ast.parse(code.text).body:  # only comments
        does.append("pass")
    if may_end:
        does = ["try:", *map(indented, does), "except SystemExit as end:"]
        does += ["    if end.code:", "        raise"]
    body += does
    if names := (*options.out, *options.gather):
        body.append(f"return {{{', '.join(map(_entry, dict.fromkeys(names)))}}}")
    text = "\n".join([*lines, *(indented(each) for each in body)])
    try:
        compile(text, f"cell {step.number}", "exec")
    except SyntaxError as error:
        raise UsageError(
            f"cell {step.number} cannot be a function ({error.msg}): change it, or run the "
            "notebook with `jupyter sky run`."
        ) from None
    return text


def _shown(options: CellOptions, ranks: tuple[int, ...] | None) -> str | None:
    """Return the argument of `sky.stdout`; ``None`` to show all ranks."""
    match options.stdout:
        case "all":
            return None
        case "none":
            return "lambda info: False"
        case tuple() as chosen:
            return f"lambda info: info.rank in {chosen!r}"
        case None if ranks and ranks[0] != 0:
            return f"lambda info: info.rank == {ranks[0]}"
    return '"head"'


def _bound(name: str) -> str:
    return name.replace(":", "_")


def _entry(name: str) -> str:
    value, _, part = name.partition(":")
    return f'"{_bound(name)}": {value}' + (".state_dict()" if part == "state" else "")


def _call(step: ExportedCell, hidden: Sequence[str], pool: str, results: str) -> str:
    options = step.options
    assert options is not None
    returns = bool(options.out or options.gather)
    call = f"{_name(step)}() @ {pool}"
    if returns:
        call = f"{results} = {call}"
    if hidden:
        own = ", ".join(f'"{name}"' for name in hidden)
        call = f"with ranks_own({own}):\n    {call}"
    if not returns:
        return _going_on(step, call)
    first = options.ranks[0] if isinstance(options.ranks, tuple) else 0
    lines = [call]
    lines += [f'{_bound(name)} = {results}[{first}]["{_bound(name)}"]' for name in options.out]
    some = results if options.ranks == "all" else f"{results} if each is not None"
    lines += [
        f'{_bound(name)} = [each["{_bound(name)}"] for each in {some}]' for name in options.gather
    ]
    return _going_on(step, "\n".join(lines))


def _with_pool(starting: CellOptions, factory: ClusterFactory, pool: str) -> str:
    """Return the line that makes the cluster of a notebook."""
    options = factory.complete(starting)
    provider = factory.provider(options)
    nodes = options.nodes or provider.default_nodes
    words = options.plugin
    if words is None:
        words = tuple(each.name for each in make_plugins(None))
    arguments = {
        "provider": _constructor(f"sky.{type(provider).__name__}", provider),
        "nodes": repr(nodes),
        "accelerator": repr(options.gpu) if options.gpu else None,
        "plugins": f"[{', '.join(_plugin(each, nodes) for each in words)}]" if words else None,
        "image": _image(options),
        "volumes": _literal(options.volumes) if options.volumes else None,
        "replace": "True" if options.replace else None,
    }
    for name in ("procs_per_node", "cpus", "memory", "idle_timeout", "patience"):
        if (value := getattr(options, name)) is not None:
            arguments[name] = repr(value)
    listed = "".join(f"    {name}={value},\n" for name, value in arguments.items() if value)
    return f"with sky.ComputePool(\n{listed}) as {pool}:"


def _image(options: CellOptions) -> str | None:
    """Return the expression for the image; ``None`` if nothing was typed for it."""
    image = image_of(options)
    if image == Image():
        return None
    # Values from the environment stay there: they may be secret.
    variables = [
        f"{name!r}: os.environ[{name!r}]"
        if os.environ.get(name) == value
        else f"{name!r}: {value!r}"
        for name, value in options.variable
    ]
    text = _constructor("sky.Image", dataclasses.replace(image, env={}))
    if not variables:
        return text
    comma = "" if text.endswith("()") else ", "
    return f"{text[:-1]}{comma}env={{{', '.join(variables)}}})"


def _plugin(word: str, nodes: int) -> str:
    name, _, argument = word.partition("=")
    given = [repr(argument)] if argument else []
    if nodes == 1 and name in ("torch", "accelerate"):
        given.append("single_rank=True")  # as in cells: code for many ranks also runs on one
    return f"sky.plugins.{name}({', '.join(given)})"


def _constructor(name: str, value: Any) -> str:
    """Return an expression that constructs a dataclass, without default values."""
    given = []
    for each in dataclasses.fields(value):
        default = each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        if each.init and (has := getattr(value, each.name)) != default:
            given.append(f"{each.name}={_literal(has)}")
    return f"{name}({', '.join(given)})"


def _literal(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _constructor(f"sky.{type(value).__name__}", value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
