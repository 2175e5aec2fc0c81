"""``%sky auto``: run every following cell on the cluster, or no longer."""

from __future__ import annotations

from argparse import Namespace

from jupyter_sky.notebook.commands.context import CommandContext


def auto(context: CommandContext, options: Namespace) -> None:
    """Switch it on or off, and print what holds from now on."""
    if options.switch in ("on", "off"):
        context.auto.switch(options.switch == "on")
    if not context.auto.on:
        print("auto is off: only cells that begin with `%%sky` run on a cluster")
        return
    name = context.session.current_name
    print(
        f"auto is on: from now on cells run on {name}, except those that begin with `# local` or "
        f"with a cell magic, and those that have only lines with `%` or `!`; `%sky auto off` turns "
        f"it off"
    )
