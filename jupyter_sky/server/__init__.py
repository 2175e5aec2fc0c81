"""The Jupyter Server extension behind the sidebar.

Nothing else imports this package, so that the magics themselves need no Jupyter Server.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "jupyter_sky.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    from jupyter_sky.server.handlers import add_routes

    add_routes(serverapp)
