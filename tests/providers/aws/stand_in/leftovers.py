"""What clusters have in an account of AWS, for tests that leave nothing there."""

from __future__ import annotations

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.teardown.resources import EC2Resources, look


def find_resources(clients: Clients) -> list[EC2Resources]:
    """Return what clusters have in a region; raise if one kind cannot be looked for."""
    found, unseen = look(clients)
    for error in unseen.values():
        raise error
    return found
