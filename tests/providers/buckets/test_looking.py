"""What the notebook sees of a bucket before machines are started, and what nodes say of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import UsageError
from jupyter_sky.node.volumes.bucket import Bucket, BucketError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.looking import check_there
from jupyter_sky.transport.volumes.requests import SessionToken, VolumeOrder

VOLUME = sky.Volume("s3://photos/2024", "/data")
TOKEN: SessionToken = {
    "fields": {"access_key_id": "id", "secret_access_key": "key", "token": "login"},
    "expires": None,
}
Answer = Callable[[int, str], str]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    """Make a server that answers everything with an error; return its address."""
    servers: list[ThreadingHTTPServer] = []

    def serve(status: int, code: str) -> str:
        class Refusal(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = f"<Error><Code>{code}</Code><Message>It is so.</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        return address

    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "login")


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (404, "NoSuchBucket", "there is no bucket photos: check its name, or make it first"),
        (403, "AccessDenied", "access to s3://photos/2024 is denied: ask whoever has it"),
        (403, "InvalidAccessKeyId", "s3://photos/2024 does not take these credentials: log in"),
        (400, "ExpiredToken", "the credentials for s3://photos/2024 have expired: run a cell"),
    ],
)
def test_what_nodes_would_be_refused_is_said_before_they_are_started(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, status: int, code: str, said: str
) -> None:
    address = answer(status, code)
    log_in(monkeypatch)
    with pytest.raises(UsageError) as raised:
        check_there([VOLUME], sky.SSH("gpu1"))
    assert str(raised.value).startswith(f"--volume s3://photos/2024:/data: {said}")
    with pytest.raises(BucketError) as there:
        Bucket(order(address)).list()
    assert str(there.value).startswith(said) and there.value.is_final


@pytest.mark.parametrize(
    "provider", [sky.SSH("gpu1"), sky.Local(), sky.AWS(instance_profile="reads-photos")]
)
def test_nodes_may_have_a_role_that_the_notebook_has_not(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    answer(403, "AccessDenied")
    check_there([VOLUME], provider)
    if provider.name == "aws":
        log_in(monkeypatch)
        check_there([VOLUME], provider)
    answer(404, "NoSuchBucket")  # no role makes it be there
    with pytest.raises(UsageError, match="there is no bucket photos"):
        check_there([VOLUME], provider)


def test_a_server_that_does_not_answer_here_may_answer_nodes(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch)
    nobody = "http://127.0.0.1:9"
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
    check_there([VOLUME], sky.SSH("gpu1"))
    with pytest.raises(BucketError) as raised:
        Bucket(order(nobody)).list()
    assert str(raised.value) == (
        f"{nobody}, where s3://photos/2024 should be, is not reached from the node: check "
        "AWS_ENDPOINT_URL and its network"
    )
    assert not raised.value.is_final


def test_other_errors_are_those_of_the_server(answer: Answer) -> None:
    with pytest.raises(BucketError) as raised:
        Bucket(order(answer(400, "Strange"))).list()
    said = "s3://photos/2024 cannot be listed: its server says Strange (It is so)"
    assert str(raised.value) == said


def order(address: str) -> VolumeOrder:
    return {
        "url": "s3://photos/2024",
        "path": "/data",
        "read_only": True,
        "limit": 0,
        "options": {"endpoint": address, "region": "us-east-1"},
        "token": TOKEN,
    }
