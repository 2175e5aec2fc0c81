"""A real S3 server of this machine: moto's, over HTTP, with data that tests put there."""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

KEY, SECRET = "AKIATESTTESTTESTTEST", "long-lived/secret/of/the/user"


_DENY_WRITES = """{"Version": "2012-10-17", "Statement": [
    {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "*"}]}"""


@dataclass
class Buckets:
    """The server, and one bucket of it.

    Attributes
    ----------
    address
        Where the server listens.
    asked
        The requests that it got: method and path, without what is behind a question mark.
    """

    address: str
    client: Any
    asked: list[str] = field(default_factory=list)
    name: str = "photos"

    def put(self, files: Mapping[str, bytes]) -> None:
        """Put files into the bucket."""
        for name, content in files.items():
            self.client.put_object(Bucket=self.name, Key=name, Body=content)

    def get(self, name: str) -> bytes:
        """Return a file of the bucket."""
        content: bytes = self.client.get_object(Bucket=self.name, Key=name)["Body"].read()
        return content

    def names(self) -> list[str]:
        """Return the names of all files."""
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(each["Key"] for each in found)

    def deny_writes(self) -> None:
        """Refuse to write anything, until `allow_writes`."""
        self.client.put_bucket_policy(Bucket=self.name, Policy=_DENY_WRITES)

    def allow_writes(self) -> None:
        """Write again."""
        self.client.delete_bucket_policy(Bucket=self.name)

    def reads(self, name: str) -> int:
        """Return how often a file was read, in whole or in part."""
        return self.asked.count(f"GET /{self.name}/{name}")

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Have no bucket meanwhile, and an empty one afterwards."""
        for name in self.names():
            self.client.delete_object(Bucket=self.name, Key=name)
        self.client.delete_bucket(Bucket=self.name)
        try:
            yield
        finally:
            self.client.create_bucket(Bucket=self.name)


@contextmanager
def serving(addr: str = "127.0.0.1") -> Iterator[Buckets]:
    """Serve buckets at an address of this machine, with the user's keys in the environment."""
    import boto3  # both take a third of a second, of each process that runs tests
    from moto.server import ThreadedMotoServer

    asked: list[str] = []

    class Requests(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.getMessage().replace("\x1b", "")
            words = said.partition('"')[2].split()
            if len(words) > 1:
                method = words[0].rpartition("m")[2]
                asked.append(f"{method} {words[1].partition('?')[0]}")

    log, handler = logging.getLogger("werkzeug"), Requests()
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    server = ThreadedMotoServer(ip_address=addr, port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    address = f"http://{addr}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        made = Buckets(address, boto3.Session().client("s3"), asked)
        made.client.create_bucket(Bucket=made.name)
        try:
            yield made
        finally:
            with urllib.request.urlopen(f"{address}/moto-api/reset", b""):
                server.stop()
            log.removeHandler(handler)
            log.setLevel(before[0])
            log.propagate = before[1]
