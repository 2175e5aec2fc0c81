"""What a server of buckets refuses, as users read it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.node.volumes.conftest import Keeper


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (
            403,
            "RequestTimeTooSkewed",
            "the clock of this machine differs by minutes from that of s3://photos/d's server",
        ),
        (403, "AccessDenied", "access to s3://photos/d is denied: ask whoever has it"),
        (400, "ExpiredToken", "the credentials for s3://photos/d have expired: run a cell"),
        (403, "InvalidAccessKeyId", "s3://photos/d does not take these credentials: log in again"),
    ],
)
def test_what_is_refused_is_said(keeper: Keeper, status: int, code: str, sentence: str) -> None:
    with refusing(status, code) as address:
        assert sentence in keeper.mount("s3://photos/d", address)


def test_a_server_that_is_busy_is_waited_for(keeper: Keeper) -> None:
    with refusing(503, "SlowDown", times=12) as address:
        assert keeper.mount("s3://photos/d", address) == ""
    with refusing(503, "SlowDown", times=12, port=int(address.rpartition(":")[2])):
        (keeper.data / "result").write_text("1")
        [said] = keeper.ask("write_back")["volumes"]
    assert (said["files"], said["trouble"]) == (1, "")


@contextmanager
def refusing(status: int, code: str, times: float = float("inf"), port: int = 0) -> Iterator[str]:
    """Give the address of a server that refuses so many requests; else it has no files."""
    asked = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            is_refused = next(asked) < times
            text = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
            if not is_refused:
                text = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.send_response(status if is_refused else 200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
