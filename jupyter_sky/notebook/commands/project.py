"""``%sky pip``, ``put`` and ``get``: packages and files of a project on running nodes."""

from __future__ import annotations

import glob
from argparse import Namespace
from pathlib import Path

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_count, format_list
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.ranks import choose_ranks, first_ranks
from jupyter_sky.notebook.project import files
from jupyter_sky.notebook.project.sending import PartlySent
from jupyter_sky.notebook.scripts.node_script import NodeScript
from jupyter_sky.notebook.scripts.run import run_scripts


def pip(context: CommandContext, options: Namespace) -> None:
    """Install packages on all nodes."""
    if not options.packages:
        raise UsageError("name the packages, as in `%sky pip install einops`.")
    cluster = context.cluster(options.cluster)
    typed = CellOptions(
        pip=options.packages,
        wheels=tuple(options.wheels or ()),
        index=tuple(options.index or ()),
    )
    context.session.additions.install(cluster, options.packages, typed)


def put(context: CommandContext, options: Namespace) -> None:
    """Send files and folders to all nodes."""
    cluster, session = context.cluster(options.cluster), context.session
    named = format_list(options.paths)
    limit = session.settings.size_limit(options.allow_large)
    contents = files.read_sources(options.paths, options.to, limit, options.force)
    if cluster.sync.shares_files:
        print(f"{cluster.name}: its nodes see the files of this computer, {_uncopied(options)}")
        return
    size = format_bytes(sum(each.size for each in contents))
    verb = "is" if len(options.paths) == 1 else "are"
    script = NodeScript(":", f"put {named}", folders=tuple(contents))
    try:
        run_scripts(context.shell, session, cluster, CellOptions(), [script])
    except PartlySent:
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            f"{named} ({size}) {verb} not on all nodes: the same line sends what they lack."
        ) from None
    nodes = format_count(len(cluster.state.nodes), "node")
    print(f"{cluster.name}: {named} ({size}) {verb} on {nodes}")


def get(context: CommandContext, options: Namespace) -> None:
    """Download files and folders from nodes."""
    cluster = context.cluster(options.cluster)
    chosen = choose_ranks(cluster, options.ranks or "head", "%sky get")
    if cluster.sync.shares_files:
        for path in options.paths:
            place = Path(path).expanduser()
            found = glob.iglob(str(place), recursive=True)  # noqa: PTH207 - absolute ones, too
            if not place.exists() and not any(found):
                advice = files.about_variables(cluster, [path], chosen[0])
                raise UsageError(f"{path} is not there: its nodes write to this computer.{advice}")
        print(f"{cluster.name}: its nodes write to this computer, {_uncopied(options)}")
        return
    ranks = first_ranks(cluster, chosen)
    limit = context.session.settings.size_limit(options.allow_large)
    files.bring(context.shell, cluster, options.paths, ranks, options.to, limit, options.force)


def _uncopied(options: Namespace) -> str:
    """Return the end of a sentence about files that need not be copied."""
    named = format_list(options.paths)
    if not options.to:
        return f"{named} too"
    stay = "stays where it is" if len(options.paths) == 1 else "stay where they are"
    return f"so {named} {stay}, and nothing is copied to {options.to}"
