"""An instance's metadata, version 2, as far as it is about spot: an answer of our own.

moto has none that an instance could ask. ``python metadata.py FOLDER`` serves the files of a folder
below ``/latest/meta-data/``, to those who show a token that they were given.
"""

from __future__ import annotations

import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ADDRESS = "169.254.169.254"
_ROOT = "/latest/meta-data/"


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    token = uuid.uuid4().hex

    def do_PUT(self) -> None:
        asked = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        is_well = self.path == "/latest/api/token" and asked.isdigit() and 0 < int(asked) <= 21600
        self._answer(*((200, self.token) if is_well else (400, "")))

    def do_GET(self) -> None:
        place = self.folder / self.path.removeprefix(_ROOT)
        if self.headers.get("X-aws-ec2-metadata-token") != self.token:
            self._answer(401, "")
        elif self.path.startswith(_ROOT) and place.is_file():
            self._answer(200, place.read_text())
        else:
            self._answer(404, "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[1])
    ThreadingHTTPServer((ADDRESS, 80), _Handler).serve_forever()
