"""What ranks display, as a page shows it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from jupyter_sky.formatting import escaped
from jupyter_sky.transport.protocol.events import Display


def parts_of(event: Display) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the place of a display in the page, its data, and its metadata."""
    place = event.transient.get("display_id")
    # A display id that no other rank, the notebook or a strip uses.
    transient = {"display_id": f"sky-rank-{event.rank}-{place}"} if place else {}
    return escaped(transient), escaped(event.data), escaped(event.metadata)


def publish(
    shell: Any,
    event: Display,
    place: Mapping[str, Any],
    data: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> None:
    """Show a display in the notebook, with its parts as they may be shown there."""
    shell.display_pub.publish(
        data={mime: _as_text(value) for mime, value in data.items()},
        metadata=metadata,
        transient=place,
        update=event.kind == "update",
    )


def wants_safe(shell: Any) -> bool:
    """Return whether the settings of a notebook let displays run no code in the page."""
    # They are found by the name that `%config` knows, or where the extension is not loaded, in the
    # user's configuration of IPython.
    loaded = [each for each in shell.configurables if type(each).__name__ == "Sky"]
    said = loaded[0].display if loaded else shell.config.get("Sky", {}).get("display")
    return bool(said == "safe")


def _as_text(value: Any) -> Any:
    """Return image bytes in base64, as notebooks store them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
