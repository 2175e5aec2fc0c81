"""``%sky auto``: run every following cell on the cluster, or no longer."""

from __future__ import annotations

from argparse import Namespace

from jupyter_sky.notebook.commands.context import CommandContext


def auto(context: CommandContext, options: Namespace) -> None:
    """Switch it on or off, and print what holds from now on."""
    if options.switch in ("on", "off"):
        context.auto.switch(options.switch == "on")
    if not context.auto.on:
        print("auto is off: cells run here, and those with `%%sky` above them on a cluster")
        return
    name = context.session.current_name
    print(
        f"auto is on: from the next cell on, cells run on {name}. What stays here are cells "
        "that begin with `# local`, that have a cell magic of their own, or that have nothing "
        "but lines with `%` or `!`; `%sky auto off` ends it"
    )
