"""The commands of ``%sky``: looking after clusters, one method a command."""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.notebook.commands import doctor, gc, offers, snapshot, status
from jupyter_sky.notebook.commands.control import scale
from jupyter_sky.notebook.commands.logs import save_log, show_log
from jupyter_sky.notebook.ipython.auto_cells import Auto
from jupyter_sky.notebook.kernel import is_leaving
from jupyter_sky.notebook.options.definitions import CellOptions, parse_line
from jupyter_sky.notebook.output.progress import NoticeLine, ProgressLine, SendingLine
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.notebook.results import bind
from jupyter_sky.notebook.session import Session, describe, no_cluster
from jupyter_sky.notebook.sidebar import actions
from jupyter_sky.notebook.validation import check_names, choose_ranks

_HEARD_WITHIN = 8.0


class Commands:
    """What ``%sky`` does.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters.
    auto
        What sends its cells to them.
    """

    def __init__(self, shell: InteractiveShell, session: Session, auto: Auto) -> None:
        self._shell = shell
        self._session = session
        self._auto = auto

    def run(self, line: str) -> None:
        """Do what a line says.

        Raises
        ------
        UsageError
            When it cannot be done; the sentence says what to type instead.
        HelpRequested
            When the line asks for help.
        """
        self.do(*parse_line(line))

    def do(self, command: str, options: Any) -> bool | None:
        """Do a command; return ``False`` if something needs the person's attention."""
        commands: dict[str, Callable[[Any], bool | None]] = {
            "up": self._up,
            "down": self._down,
            "status": self._status,
            "logs": self._logs,
            "push": self._push,
            "pull": self._pull,
            "attach": self._attach,
            "panel": self._panel,
            "interrupt": self._interrupt,
            "restart": self._restart,
            "scale": self._scale,
            "auto": self._turn,
            "offers": self._offers,
            "snapshot": self._snapshot,
            "doctor": self._doctor,
            "gc": self._gc,
        }
        return commands[command](options)

    def _up(self, options: CellOptions) -> None:
        self._session.cluster(options)

    def _down(self, options: Namespace) -> None:
        print(self._session.down(options.name))

    def _status(self, options: Namespace) -> None:
        if options.json:
            print(json.dumps(status.listing(self._session.known()), indent=2))
            return
        self._session.find()
        print(status.report(self._session.known(), self._session.current_name))

    def _logs(self, options: Namespace) -> None:
        with self._reached(options.cluster) as cluster:
            rank = options.rank or 0
            if rank not in cluster.all_ranks:
                raise UsageError(f"there is no rank {rank}: {format_ranks(cluster.all_ranks)}.")
            if options.save:
                print(save_log(cluster, rank, options.save))
            else:
                show_log(cluster, rank, options.tail, options.follow)

    def _push(self, options: Namespace) -> None:
        cluster = self._running()
        check_names(options.names, self._shell.user_ns, "%sky push")
        update = cluster.sync.update(
            options.names, self._shell.user_ns, cluster.all_ranks, force=True, limit=None
        )
        sending = SendingLine(self._shell, cluster, update.sizes)
        sending.update(0, update.size)
        run = cluster.run(Task(cluster.all_ranks, code="", update=update))
        run.follow(sending=sending.update)
        run.values()

    def _pull(self, options: Namespace) -> None:
        cluster = self._running()
        ranks = choose_ranks(cluster, options.ranks or "head", "--ranks")
        asked = {rank: list(options.names) for rank in ranks}
        run = cluster.run(Task(ranks, code="", values=asked))
        run.follow()
        values = run.values()
        single = options.ranks in (None, "head")
        for name in options.names:
            found = [values[rank][name] for rank in ranks]
            bind(self._shell, cluster, run, {name: found[0] if single else found})

    def _attach(self, options: Namespace) -> None:
        cluster = self._session.find(options.name)
        if cluster is None:
            raise UsageError(f"there is no cluster {options.name or 'of this notebook'} to attach.")
        self._session.use(cluster)
        print(f"{cluster.name}: {describe(cluster)}; cells without --cluster use it now")
        if run := cluster.pop_unseen_run():
            self._take_up(cluster, run)

    def _take_up(self, cluster: Cluster, run: RunHandle) -> None:
        """Show what a run that another kernel began has printed and prints, and bind its values."""
        print(f"{cluster.name}: `{run.task.title or 'a run'}` was begun before this kernel")
        renderer = Renderer(self._shell, run.task.show)
        try:
            run.follow(
                lambda event: renderer.render(event, flush=run.nothing_waits),
                notice=NoticeLine(self._shell, cluster.name).say,
                is_leaving=partial(is_leaving, self._shell),
            )
        finally:
            renderer.finish()
            self._session.panels.finish(cluster, run)
        bind(self._shell, cluster, run, _as_asked(run))

    def _panel(self, options: Namespace) -> None:
        cluster = self._session.find(options.name)
        if cluster is None:
            raise UsageError(f"there is no cluster {options.name or 'of this notebook'} to show.")
        if not self._session.panels.show(cluster):
            raise UsageError(
                "a panel needs a notebook with ipywidgets and anywidget: `%sky status` says the "
                "same in text."
            )

    def _interrupt(self, options: Namespace) -> None:
        with self._reached(options.cluster) as cluster:
            # Who only visits has to stay until the ranks have heard of it.
            print(actions.interrupt(cluster, _HEARD_WITHIN if options.cluster else 0.0))

    def _restart(self, options: Namespace) -> None:
        if not options.cluster and self._session.revive():
            return
        print(actions.restart(self._running(options.cluster), options.ranks))

    def _scale(self, options: Namespace) -> None:
        cluster = self._running(options.cluster)
        with ProgressLine(self._shell, cluster.name) as progress:
            said = scale(self._session, cluster, options.nodes, options.hosts or (), progress.say)
            progress.say(f"{said}, in {progress.seconds:.1f} s")

    def _offers(self, options: Namespace) -> None:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        wanted = CellOptions(**given)
        if options.json or wanted.provider not in (None, "aws"):
            found = offers.listing(self._session, wanted)
            print(json.dumps(found, indent=2) if options.json else offers.table(found))
            return
        chosen = self._session.settings.of_clusters(wanted)
        print(self._session.aws(chosen).offers(offers.spec(chosen)))

    def _doctor(self, options: Namespace) -> bool:
        settings, targets = self._session.settings, self._session.hosts(options.hosts or ())
        well = [doctor.report()]
        if options.provider == "aws":
            print()
            well.append(doctor.report_aws(self._session.aws()))
        for target in targets:
            print()
            well.append(doctor.report_host(target, settings.python))
        if len(targets) > 1:
            print()
            well.append(doctor.report_ways(targets, settings.python, settings.interface))
        return all(well)

    def _snapshot(self, options: Namespace) -> None:
        if options.remove:
            print(snapshot.remove(self._session.aws().clients(), options.remove))
        else:
            print(snapshot.make(self._shell, self._running(options.cluster)))

    def _gc(self, options: Namespace) -> None:
        gc.collect(options.name)
        gc.prune(self._session.hosts(options.hosts or ()), options.unused_for)

    def _turn(self, options: Namespace) -> None:
        if options.switch in ("on", "off"):
            self._auto.turn(options.switch == "on")
        if not self._auto.on:
            print("auto is off: cells run here, and those with `%%sky` above them on a cluster")
            return
        name = self._session.current_name
        print(
            f"auto is on: from the next cell on, cells run on {name}. What stays here are cells "
            "that begin with `# local`, that have a cell magic of their own, or that have nothing "
            "but lines with `%` or `!`; `%sky auto off` ends it"
        )

    @contextlib.contextmanager
    def _reached(self, name: str | None) -> Iterator[Cluster]:
        """Give a cluster for a moment, without taking it up if it is not the notebook's."""
        if name is None:
            yield self._running()
            return
        with self._session.visit(name) as cluster:
            yield cluster

    def _running(self, name: str | None = None) -> Cluster:
        cluster = self._session.find(name)
        if cluster is None and name:
            raise UsageError(no_cluster(name))
        if cluster is None:
            raise UsageError("no cluster is running: `%%sky --nodes 4` above a cell starts one.")
        return cluster


def _as_asked(run: RunHandle) -> dict[str, Any]:
    """Return the values of a run as its cell asked for them: of the head, or a list of all."""
    values, asked = run.values(), run.task.values
    first, *others = run.task.ranks
    gathered = set(asked[others[0]]) if others and others[0] in asked else set()
    return {
        name: [values[rank][name] for rank in run.task.ranks]
        if name in gathered
        else values[first][name]
        for name in asked.get(first, ())
    }
