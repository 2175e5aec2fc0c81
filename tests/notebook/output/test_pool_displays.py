"""What calls on a pool display is in the cell that makes them, as of a cell on a cluster."""

from __future__ import annotations

from collections.abc import Callable

from tests.notebook.kernels import LiveNotebook

SHOW = """
import jupyter_sky as sky
from IPython.display import HTML, Javascript, display

@sky.compute
def report():
    print("begins")
    handle = display(HTML("<b onclick=alert(1)>bold</b>"), display_id="known")
    handle.update(HTML("<i onclick=alert(1)>italic</i>"))
    display(Javascript("alert(1)"))

pool = sky.ComputePool(name="shows")
pool.__enter__()
"""


def test_a_cell_shows_what_its_calls_display(opened: Callable[..., LiveNotebook]) -> None:
    notebook = opened()
    notebook.succeed(SHOW)
    try:
        for call in ("report() >> pool", "report() @ pool", "(report() & report()) >> pool"):
            rich = notebook.succeed(f"_ = {call}")
            assert rich.stdout.startswith("begins\n")
            assert rich.data[0]["text/html"] == "<i onclick=alert(1)>italic</i>"
            assert rich.data[1]["application/javascript"] == "alert(1)"
        notebook.succeed("%config Sky.display = 'safe'")
        safe = notebook.succeed("_ = report() >> pool")
        assert safe.data[0]["text/html"] == "<i>italic</i>"
        assert "alert" not in str(safe.data)
        assert "[application/javascript: not shown" in safe.stdout
        # What a configuration file says holds where the extension is not loaded, too.
        notebook.succeed("%config Sky.display = 'rich'\n%unload_ext jupyter_sky")
        notebook.succeed("get_ipython().config.Sky.display = 'safe'")
        assert "alert" not in str(notebook.succeed("_ = report() >> pool").data)
    finally:
        notebook.succeed("pool.__exit__(None, None, None)")
