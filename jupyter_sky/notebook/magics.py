"""The magics: ``%%sky`` runs a cell on a cluster, ``%sky`` looks after clusters."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import describe_ranks
from jupyter_sky.cluster.run import Work
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.errors import InvalidCell
from jupyter_sky.notebook.options import CellOptions, HelpRequested, parse_cell, parse_line
from jupyter_sky.notebook.render import Renderer
from jupyter_sky.notebook.session import Session, describe
from jupyter_sky.transport.names import analyse


@magics_class
class SkyMagics(Magics):
    """``%%sky`` and ``%sky``."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.session = Session(shell)

    @line_cell_magic
    def sky(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on a cluster (``%%sky``), or look after clusters (``%sky``)."""
        try:
            if cell is None:
                return self._command(line)
            self._run(parse_cell(line), cell)
        except HelpRequested as asked:
            print(asked.text)
        return None

    # %%sky

    def _run(self, options: CellOptions, cell: str) -> None:
        if options.background:
            raise UsageError("--background is not there yet: leave it out.")
        names = self._needed(options, cell)
        cluster = self.session.cluster(options)
        ranks = _choose(cluster, options.ranks, "--ranks")
        shown = _shown(cluster, options.stdout, ranks)
        run = cluster.run(
            Work(
                ranks=ranks,
                code=cell,
                parcel=cluster.outbox.parcel(names, self.shell.user_ns, ranks),
                values=_asked_for(options, ranks),
                show=shown,
            )
        )
        renderer = Renderer(self.shell, shown)
        try:
            run.follow(
                lambda event: renderer.render(event, flush=run.nothing_waits), options.timeout
            )
        finally:
            renderer.finish()
        self._bind(options, ranks, run.values())

    def _needed(self, options: CellOptions, cell: str) -> frozenset[str]:
        """Return the names that the cell needs; a cell that does not compile goes no further."""
        try:
            reads = analyse(cell).reads
        except SyntaxError as error:
            raise InvalidCell(error) from None
        if options.in_names is None:
            return reads
        self._check_names(options.in_names, "--in")
        return frozenset(options.in_names)

    def _check_names(self, names: Sequence[str], option: str) -> None:
        if missing := [name for name in names if name not in self.shell.user_ns]:
            raise UsageError(
                f"{option} {missing[0]}: the notebook has no {missing[0]}; define it first."
            )

    def _bind(
        self, options: CellOptions, ranks: Sequence[int], values: dict[int, dict[str, Any]]
    ) -> None:
        bound: dict[str, Any] = {}
        for name in options.out:
            bound[name] = values[ranks[0]][name]
        for name in options.gather:
            bound[name] = [values[rank][name] for rank in ranks]
        self.shell.push(bound)

    # %sky

    def _command(self, line: str) -> Any:
        command, options = parse_line(line)
        commands: dict[str, Callable[[Any], Any]] = {
            "up": self._up,
            "down": self._down,
            "status": self._status,
            "logs": self._logs,
            "push": self._push,
            "pull": self._pull,
            "attach": self._attach,
            "interrupt": self._interrupt,
            "restart": self._restart,
        }
        if command not in commands:
            there = ", ".join(commands)
            raise UsageError(f"%sky {command} is not there yet: this version has {there}.")
        return commands[command](options)

    def _up(self, options: CellOptions) -> None:
        self.session.cluster(options)

    def _down(self, options: Any) -> None:
        print(f"{self.session.down(options.name)}: ended, nothing of it is left")

    def _status(self, options: Any) -> None:
        cluster = self.session.find()
        if cluster is None:
            print("No cluster: `%%sky --nodes 4` above a cell starts one.")
            return
        print(f"{cluster.name}: {describe(cluster)}")
        for rank in cluster.state.ranks:
            trouble = f" ({rank.trouble})" if rank.trouble else ""
            print(f"  rank {rank.rank}  node {rank.node}  {rank.phase}{trouble}")

    def _logs(self, options: Any) -> None:
        cluster = self._running()
        rank = options.rank or 0
        if rank not in cluster.all_ranks:
            raise UsageError(f"there is no rank {rank}: {describe_ranks(cluster.all_ranks)}.")
        data, _ = cluster.log(rank, tail=options.tail)
        print(data.decode(errors="replace"), end="")

    def _push(self, options: Any) -> None:
        cluster = self._running()
        self._check_names(options.names, "%sky push")
        parcel = cluster.outbox.parcel(options.names, self.shell.user_ns, cluster.all_ranks)
        cluster.run(Work(cluster.all_ranks, code="", parcel=parcel)).follow()

    def _pull(self, options: Any) -> None:
        cluster = self._running()
        ranks = _choose(cluster, options.ranks or "head", "--ranks")
        asked = {rank: list(options.names) for rank in ranks}
        run = cluster.run(Work(ranks, code="", values=asked))
        run.follow()
        values = run.values()
        single = options.ranks in (None, "head")
        for name in options.names:
            found = [values[rank][name] for rank in ranks]
            self.shell.push({name: found[0] if single else found})

    def _attach(self, options: Any) -> None:
        cluster = self.session.find(options.name)
        if cluster is None:
            raise UsageError(f"there is no cluster {options.name or 'of this notebook'} to attach.")
        self.session.use(cluster)
        print(f"{cluster.name}: {describe(cluster)}; cells without --cluster use it now")

    def _interrupt(self, options: Any) -> None:
        cluster = self._running()
        print(f"{cluster.name}: {'stopping' if cluster.interrupt() else 'nothing is running'}")

    def _restart(self, options: Any) -> None:
        cluster = self._running()
        ranks = _choose(cluster, options.ranks, "%sky restart")
        cluster.restart(ranks)
        print(f"{cluster.name}: {describe_ranks(ranks)} started anew, with empty namespaces")

    def _running(self) -> Cluster:
        cluster = self.session.find()
        if cluster is None:
            raise UsageError("no cluster is running: `%%sky --nodes 4` above a cell starts one.")
        return cluster


def _choose(cluster: Cluster, chosen: str | Sequence[int] | None, option: str) -> tuple[int, ...]:
    if chosen in (None, "all"):
        return cluster.all_ranks
    if chosen == "head":
        return (0,)
    if chosen == "none":
        return ()
    ranks = tuple(int(rank) for rank in chosen or ())
    if wrong := [rank for rank in ranks if rank not in cluster.all_ranks]:
        raise UsageError(
            f"{option}: there is no rank {wrong[0]}, {cluster.name} has "
            f"{describe_ranks(cluster.all_ranks)}."
        )
    return ranks


def _shown(cluster: Cluster, chosen: Any, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks whose output is shown; of a run without the head, its first rank's."""
    if chosen is None and ranks:
        return (ranks[0],)
    return _choose(cluster, chosen, "--stdout")


def _asked_for(options: CellOptions, ranks: Sequence[int]) -> dict[int, list[str]]:
    if not options.out and not options.gather:
        return {}
    gathered = list(options.gather)
    asked = dict.fromkeys(ranks, gathered) if gathered else {}
    asked[ranks[0]] = list(dict.fromkeys([*options.out, *gathered]))
    return asked


_loaded: list[SkyMagics] = []


def load(shell: InteractiveShell) -> None:
    """Register the magics."""
    if not _loaded:
        magics = SkyMagics(shell)
        _loaded.append(magics)
        atexit.register(magics.session.close)
    shell.register_magics(_loaded[0])


def unload(shell: InteractiveShell) -> None:
    """Take the magics away again; clusters go on until their time is over."""
    for magics in _loaded:
        magics.session.close()
    _loaded.clear()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("sky", None)
