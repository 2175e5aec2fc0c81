"""The Jupyter Server extension behind the sidebar.

It is loaded where JupyterLab or Notebook are: nothing here is imported anywhere else, so that who
wants only the magics needs no server.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_sky.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    from jupyter_sky.server.handlers import add_routes

    add_routes(serverapp)
