"""The notices that EC2 gives to a spot instance before it takes the instance away.

They are in the instance's metadata; AWS recommends polling every five seconds.
"""

from __future__ import annotations

import http.client
import json
from datetime import datetime

ASK_EVERY = 5.0

_ADDRESS = "169.254.169.254"
_ANSWER_WITHIN = 2.0
_TOKEN_FOR = 21600  # seconds, the most that EC2 allows
_INTERRUPTED = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


def current(metadata: Metadata) -> tuple[str, float | None] | None:
    """Return kind and time of the present notice; ``None`` if there is none, or no answer."""
    try:
        if action := metadata.read(_INTERRUPTED):
            said = json.loads(action)
            return said["action"], datetime.fromisoformat(said["time"]).timestamp()
        if metadata.read(_REBALANCE):
            return "rebalance", None
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        pass  # it is polled again soon
    return None


class Metadata:
    """The instance's metadata, by version 2 of the service, which requires a token per request."""

    def __init__(self) -> None:
        self._token = ""

    def read(self, path: str) -> str | None:
        """Return what is at a path; ``None`` if there is nothing."""
        for _ in range(2):
            status, text = self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 200:
                return text
            if status != 401:
                return None
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": f"{_TOKEN_FOR}"}
            _, self._token = self._request("PUT", "/latest/api/token", lifetime)
        return None

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        # Never through a proxy: the answer is about this machine.
        connection = http.client.HTTPConnection(_ADDRESS, timeout=_ANSWER_WITHIN)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()
