"""``%sky torchrun``, ``launch`` and ``shell``: programs on nodes beside the ranks."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from IPython.display import DisplayHandle

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.cells.queued_run import QueuedRun, when_up
from jupyter_sky.notebook.cluster_factory import of_provider
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.life.stops import start
from jupyter_sky.notebook.kernel import notebook_path
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.programs.export import export_script
from jupyter_sky.notebook.scripts.node_script import (
    NodeScript,
    find_folder,
    find_mounts,
    inside,
    mounted,
)
from jupyter_sky.notebook.scripts.run import choose_nodes, run_scripts, too_few
from jupyter_sky.notebook.scripts.task_file import TaskFile, read_task
from jupyter_sky.notebook.scripts.torchrun import find_script, named_in, torchrun_script
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.validation import check_fit_stopped, first_that_fits

_KEYS = {
    "gpu": "accelerators",
    "idle_timeout": "autostop",
    "max_price": "max_hourly_cost",
    "nodes": "num_nodes",
    "spot": "use_spot",
}
"""Keys of task files that are not called like their option."""


def torchrun(context: CommandContext, line: Namespace) -> BackgroundRun | QueuedRun | None:
    """Run a script under torchrun."""
    folder, script = find_script(line)
    session, made = context.session, torchrun_script(line, script)
    limit = session.settings.size_limit(line.options.allow_large)
    place, modules = named_in(folder, script, line)
    session.factory.of_scripts[place] |= modules

    def begin(cluster: Cluster, handle: DisplayHandle | None) -> BackgroundRun | None:
        # torchrun decides which node gets its rank 0, so the output of all nodes is shown.
        ranks = choose_nodes(cluster, "--nnodes", line.nnodes)
        options = replace(line.options, ranks=ranks, stdout=line.options.stdout or "all")
        placed = inside(folder, cluster, limit, made)
        return run_scripts(context.shell, session, cluster, options, [placed], handle)

    return when_up(session, line.options, made.title, begin)


def shell(context: CommandContext, line: Namespace) -> None:
    """Say where to open a shell on a node, since a cell is not a terminal."""
    raise UsageError(
        "a shell needs a terminal: type `jupyter sky shell` in one, or open one with Terminal in "
        "JupyterLab's sidebar."
    )


def launch(context: CommandContext, line: Namespace) -> BackgroundRun | QueuedRun | None:
    """Run the setup of a task file, wait for its end, and then run its `run` section."""
    given = {**(line.env or {}), **(line.secret or {})}
    task = read_task(Path(line.file).expanduser(), given)
    workdir = line.options.workdir or task.place(task.workdir)
    with task.saying_names():
        folder = find_folder(workdir) if workdir else None
        mounts = find_mounts(task)  # before machines are rented for it
    for key in task.not_used:
        print(f"{line.file}: {key} is not used here", file=sys.stderr)
    session = context.session
    choices = _combined(task, line.options)
    limit = session.settings.size_limit(line.options.allow_large)
    # A cluster that is there may have more nodes than the task needs, and ends as it was started.
    as_it_is = {"nodes": None, "autostop": line.options.autostop}
    fitting = [replace(each, **as_it_is) for each in choices]
    with _saying_keys(task, line.options):
        is_there = _is_there(context, choices[0].nodes, fitting)
    if not is_there:
        choices = _where_stopped(session, line, choices)
    setup = "" if line.no_setup else task.setup
    both = (setup, f"{task.name}: setup"), (task.run, task.name)
    parts = [(text, title) for text, title in both if text]
    if not parts:
        print(f"{line.file} has no `run`, so it only starts a cluster", file=sys.stderr)

    def begin(cluster: Cluster, handle: DisplayHandle | None) -> BackgroundRun | None:
        ranks = choose_nodes(cluster, "num_nodes", str(choices[0].nodes or ""))
        options = replace(choices[0], ranks=ranks, stdout=line.options.stdout or "all")

        script = NodeScript("", "", task.env)
        with task.saying_names():
            if folder is not None:
                script = inside(folder, cluster, limit, script)
            script = mounted(mounts, limit, script)
        # Both parts have the files of now: while the first one runs, some may change here.
        scripts = [replace(script, text=text, title=title) for text, title in parts]
        return run_scripts(context.shell, session, cluster, options, scripts, handle)

    wanted = fitting if is_there else choices
    with _saying_keys(task, line.options):
        if len(wanted) > 1 or not parts:
            cluster = session.cluster(*wanted)
            return begin(cluster, None) if parts else None
        return when_up(session, wanted[0], task.name, begin)


def run(context: CommandContext, line: Namespace) -> None:
    """Say where to use it: in a notebook, cells run without it."""
    raise UsageError(
        f"`%sky run` is for a terminal: type `jupyter sky run {line.file}` there, or run the cells."
    )


def export(context: CommandContext, line: Namespace) -> None:
    """Write a script that does the same as the cells of a notebook."""
    source = line.notebook or notebook_path(context.shell)
    if not source:
        raise UsageError(
            "the file of this notebook is not known: name it, as in `%sky export --notebook "
            "train.ipynb`."
        )
    print(export_script(Path(source), line.file, context.session.factory))


@contextmanager
def _saying_keys(task: TaskFile, line: CellOptions) -> Iterator[None]:
    """Have errors name the keys of the file where what they refuse was not typed as an option."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for name in {name for options in task.options for name in dict(options)}:
            if name not in line.given:
                key, option = _KEYS.get(name, name), name.replace("_", "-")
                text = re.sub(rf"--{option}\b(?!-)", f"`{key}`", text)
        error.args = (text,)
        raise


def _combined(task: TaskFile, line: CellOptions) -> list[CellOptions]:
    """Return the alternative options of a task file, combined with those of the line."""
    found = []
    for options in task.options:
        of_file = dict(options)
        if "provider" in line.given or "hosts" in line.given:
            # Places in the file belong to the file's provider.
            for name in ("provider", "region", "zone", "instance_type", "image_id", "spot"):
                of_file.pop(name, None)
        if "hosts" not in line.given:
            of_file.setdefault("nodes", 1)  # like SkyPilot, whatever the cluster has
        found.append(CellOptions(**{**of_file, **line.given}))
    return list(dict.fromkeys(found))


def _is_there(context: CommandContext, nodes: int | None, choices: Sequence[CellOptions]) -> bool:
    """Return whether the cluster of a task is up or starting; start one that is stopped.

    It may have stopped itself since the task ran last.

    Parameters
    ----------
    nodes
        How many nodes the task needs.
    choices
        What it asks of a cluster that is there.

    Raises
    ------
    UsageError
        When a stopped one is not what the task asks for; it is then not started.
    """
    session, options = context.session, choices[0]
    name = options.cluster or session.current_name
    try:
        return bool(session.starting(name) or session.find(name))
    except ClusterStopped:
        row = registry.find(name)
        if row is None or not row.is_stopped:  # but about to be
            raise

    def check(started: CellOptions) -> None:
        if nodes and started.nodes and nodes > started.nodes:
            first = f"`%sky start {name}` and `%sky scale {nodes}`"
            raise too_few("num_nodes", nodes, name, started.nodes, first)
        asked = [of_provider(session.asked(each), started.provider or "") for each in choices]
        first_that_fits(asked, lambda each: check_fit_stopped(name, each, started))

    limits = {"max_cost": options.max_cost, "max_price": options.max_price}
    start(context, Namespace(name=name, **limits), check)
    return True


def _where_stopped(
    session: Session, line: Namespace, choices: list[CellOptions]
) -> list[CellOptions]:
    """Return choices with a file's ``autostop`` where it can be kept; say where disks are lost."""
    if line.options.autostop:
        return choices
    found = []
    for each in choices:
        completed = session.settings.with_cluster_defaults(session.asked(each))
        if not each.autostop or "aws" not in (completed.provider or "").split(","):
            found.append(replace(each, autostop=False))  # other machines stay as they are
            continue
        aws, why = session.factory.aws(completed), ""
        if aws.spot or aws.spot_or_on_demand or completed.spot_or_on_demand:
            why = "AWS stops no spot instances"
        elif aws.max_cost is not None:
            why = "--max-cost ends machines with their disks"
        if why:
            text = f"{line.file}: autostop ends the cluster with its disks: {why}"
            print(text, file=sys.stderr)
        found.append(replace(each, autostop=not why))
    return found


def check_can_be_left(options: CellOptions) -> None:
    """Refuse a run in the background that its program, which ends at once, is to stop later."""
    if options.background and options.timeout is not None:
        raise UsageError(
            "the program that keeps --timeout ends at once with --background: leave one of them "
            "out, or let the script stop itself, as with `timeout 1h` before a command of the "
            "`run` of a task file."
        )
