"""What a server of buckets refuses, as users read it."""

from __future__ import annotations

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


@contextmanager
def refusing(status: int, code: str) -> Iterator[str]:
    """Give the address of a server that refuses everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
