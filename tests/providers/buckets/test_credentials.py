"""What of the user's credentials is sent to nodes: what expires, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.project.volumes import keep_unwritten
from jupyter_sky.providers.buckets.credentials import order_of
from tests.lab.buckets import KEY, SECRET, Buckets, serving

VOLUME = sky.Volume("s3://photos/2024", "/data")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Buckets]:
    with serving() as made:
        yield made


def test_a_key_that_does_not_expire_buys_a_token_that_does(bucket: Buckets) -> None:
    order = order_of(VOLUME, sky.SSH("gpu1"))
    assert order["token"] is not None
    assert KEY not in str(order)
    assert SECRET not in str(order)
    assert order["token"]["fields"]["token"]
    expires = order["token"]["expires"]
    assert expires is not None
    assert 3600 < expires - time.time() <= 12 * 3600 + 60


def test_instances_with_a_role_are_sent_nothing(bucket: Buckets) -> None:
    assert order_of(VOLUME, sky.AWS(instance_profile="reads-photos"))["token"] is None


def test_a_token_is_sent_as_it_is(bucket: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-a-login")
    token = order_of(VOLUME, sky.SSH("gpu1"))["token"]
    assert token is not None
    assert token["fields"]["token"] == "of-a-login"


def test_without_a_token_nodes_elsewhere_get_nothing(
    bucket: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UsageError, match="is not sent to nodes, and AWS gives no session token"):
        order_of(VOLUME, sky.SSH("gpu1"))
    # To nodes of this computer it leaves nothing.
    assert order_of(VOLUME, sky.Local())["token"] is not None


def test_rented_machines_with_what_is_nowhere_else_are_not_given_back() -> None:
    trouble = "not written to s3://photos: /data/model, on node 0 alone (access is denied)"
    mounts = SimpleNamespace(volumes=(VOLUME,), write_back=lambda: ([], [trouble]))
    rented: Any = SimpleNamespace(name="train", provider=sky.AWS(), mounts=mounts)
    with pytest.raises(SkyError, match=r"/data/model, on node 0 alone .* `%sky down --discard`"):
        keep_unwritten(rented)
    keep_unwritten(SimpleNamespace(**{**vars(rented), "provider": sky.SSH("gpu1")}))  # type: ignore[arg-type]
