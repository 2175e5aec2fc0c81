"""The commands of ``%sky``: looking after clusters, one method a command."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import describe_ranks
from jupyter_sky.cluster.run import Run
from jupyter_sky.cluster.work import Work
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook import doctor, snapshot, status
from jupyter_sky.notebook.auto import Auto
from jupyter_sky.notebook.choices import check_names, choose_ranks
from jupyter_sky.notebook.leaving import is_leaving
from jupyter_sky.notebook.logs import save_log, show_log
from jupyter_sky.notebook.options import CellOptions, parse_line
from jupyter_sky.notebook.progress import NoticeLine
from jupyter_sky.notebook.render import Renderer
from jupyter_sky.notebook.results import bind
from jupyter_sky.notebook.scale import scale
from jupyter_sky.notebook.sending import SendingLine
from jupyter_sky.notebook.session import Session, describe


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

    def run(self, line: str) -> Any:
        """Do what a line says.

        Raises
        ------
        UsageError
            When it cannot be done; the sentence says what to type instead.
        HelpRequested
            When the line asks for help.
        """
        command, options = parse_line(line)
        commands: dict[str, Callable[[Any], Any]] = {
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
            "offers": lambda options: print(self._session.offers(options)),
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
        self._session.find()
        print(status.report(self._session.known(), self._session.current_name))

    def _logs(self, options: Namespace) -> None:
        cluster = self._running()
        rank = options.rank or 0
        if rank not in cluster.all_ranks:
            raise UsageError(f"there is no rank {rank}: {describe_ranks(cluster.all_ranks)}.")
        if options.save:
            print(save_log(cluster, rank, options.save))
        else:
            show_log(cluster, rank, options.tail, options.follow)

    def _push(self, options: Namespace) -> None:
        cluster = self._running()
        check_names(options.names, self._shell.user_ns, "%sky push")
        parcel = cluster.outbox.parcel(
            options.names, self._shell.user_ns, cluster.all_ranks, force=True, limit=None
        )
        sending = SendingLine(self._shell, cluster, parcel.sizes)
        sending.update(0, parcel.size)
        run = cluster.run(Work(cluster.all_ranks, code="", parcel=parcel))
        run.follow(sending=sending.update)
        run.values()

    def _pull(self, options: Namespace) -> None:
        cluster = self._running()
        ranks = choose_ranks(cluster, options.ranks or "head", "--ranks")
        asked = {rank: list(options.names) for rank in ranks}
        run = cluster.run(Work(ranks, code="", values=asked))
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
        if run := cluster.take_up():
            self._take_up(cluster, run)

    def _take_up(self, cluster: Cluster, run: Run) -> None:
        """Show what a run that another kernel began has printed and prints, and bind its values."""
        print(f"{cluster.name}: `{run.work.title or 'a run'}` was begun before this kernel")
        renderer = Renderer(self._shell, run.work.show)
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
        cluster = self._running()
        print(f"{cluster.name}: {'stopping' if cluster.interrupt() else 'nothing is running'}")

    def _restart(self, options: Namespace) -> None:
        if self._session.revive():
            return
        cluster = self._running()
        ranks = choose_ranks(cluster, options.ranks, "%sky restart")
        cluster.restart(ranks)
        print(f"{cluster.name}: {describe_ranks(ranks)} started anew, with empty namespaces")

    def _scale(self, options: Namespace) -> None:
        scale(self._shell, self._session, self._running(), options.nodes, options.hosts or ())

    def _doctor(self, options: Namespace) -> None:
        doctor.report()
        settings, targets = self._session.settings, self._session.hosts(options.hosts or ())
        if options.provider == "aws":
            print()
            doctor.report_aws(self._session.aws())
        for target in targets:
            print()
            doctor.report_host(target, settings.python)
        if len(targets) > 1:
            print()
            doctor.report_ways(targets, settings.python, settings.interface)

    def _snapshot(self, options: Namespace) -> None:
        if options.remove:
            print(snapshot.remove(self._session.aws().clients(), options.remove))
        else:
            print(snapshot.make(self._shell, self._running()))

    def _gc(self, options: Namespace) -> None:
        doctor.collect(options.name)
        doctor.prune(self._session.hosts(options.hosts or ()), options.unused_for)

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

    def _running(self) -> Cluster:
        cluster = self._session.find()
        if cluster is None:
            raise UsageError("no cluster is running: `%%sky --nodes 4` above a cell starts one.")
        return cluster


def _as_asked(run: Run) -> dict[str, Any]:
    """Return the values of a run as its cell asked for them: of the head, or a list of all."""
    values, asked = run.values(), run.work.values
    first, *others = run.work.ranks
    gathered = set(asked[others[0]]) if others and others[0] in asked else set()
    return {
        name: [values[rank][name] for rank in run.work.ranks]
        if name in gathered
        else values[first][name]
        for name in asked.get(first, ())
    }
