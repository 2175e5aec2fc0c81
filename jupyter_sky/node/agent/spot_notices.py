"""What EC2 tells a spot instance before it takes it away.

The instance's metadata has it, and AWS recommends to ask every five seconds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

ASK_EVERY = 5.0

_ADDRESS = "169.254.169.254"
_ANSWER_WITHIN = 2.0
_TOKEN_FOR = 21600  # seconds, the most that there is
_INTERRUPTED = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


@dataclass(frozen=True)
class Notice:
    """What becomes of the instance, and when, as ``time.time`` tells it, if that is known."""

    kind: str
    at: float | None


async def watch(tell: Callable[[Notice], None]) -> None:
    """Tell each notice once, for as long as there are any to come."""
    metadata = _Metadata()
    told: set[Notice] = set()
    loop = asyncio.get_running_loop()
    while True:
        for notice in await loop.run_in_executor(None, lambda: list(_look(metadata))):
            if notice not in told:
                told.add(notice)
                tell(notice)
        await asyncio.sleep(ASK_EVERY)


def _look(metadata: _Metadata) -> Iterator[Notice]:
    try:
        if action := metadata.read(_INTERRUPTED):
            said = json.loads(action)
            yield Notice(said["action"], datetime.fromisoformat(said["time"]).timestamp())
        elif metadata.read(_REBALANCE):
            yield Notice("rebalance", None)
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        return  # it is asked again soon


class _Metadata:
    """The instance's metadata, version 2: whoever asks shows a token."""

    def __init__(self) -> None:
        self._token = ""

    def read(self, path: str) -> str | None:
        """Return what is at a path; ``None`` if there is nothing."""
        for _ in range(2):
            status, text = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 200:
                return text
            if status != 401:
                return None
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": f"{_TOKEN_FOR}"}
            _, self._token = self._ask("PUT", "/latest/api/token", lifetime)
        return None

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        # Never through a proxy: the answer is about this machine.
        connection = http.client.HTTPConnection(_ADDRESS, timeout=_ANSWER_WITHIN)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()
