"""Shells on nodes, as a user's terminal asks for what they print."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_sky.cluster.control.shells import Shell


class SlowConnection:
    """Answers the first question with the end of the shell, and the second not yet."""

    name = "node"

    def __init__(self) -> None:
        self.asked = 0
        self.given_up = 0

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        self.asked += 1
        if self.asked == 1:
            return {"data": b"bye", "status": 3}
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.given_up += 1


def test_nothing_is_asked_any_longer_of_a_shell_that_has_ended() -> None:
    connection = SlowConnection()
    shell = Shell(connection, 1)  # type: ignore[arg-type]
    assert shell.read() == b"bye"
    assert shell.status == 3
    assert connection.given_up == connection.asked - 1 == 1
