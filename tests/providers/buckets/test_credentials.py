"""What of the user's credentials is sent to nodes: what expires, or nothing."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.project.volumes import write_back_or_refuse
from jupyter_sky.providers.buckets.credentials import order_of
from jupyter_sky.providers.sessions.mfa import without_questions
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What AWS is asked, in order; nobody may list a folder that is called ``closed``."""
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    found = []
    usual = BaseClient._make_api_call

    def call(client: Any, action: str, given: dict[str, Any]) -> Any:
        found.append((action, given))
        if action == "ListObjectsV2" and given["Prefix"] == "closed/":
            raise ClientError({"Error": {"Code": "AccessDenied"}}, action)
        return usual(client, action, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    return found


@pytest.mark.parametrize(
    ("volume", "read", "listed", "written"),
    [
        (VOLUME, "arn:aws:s3:::photos/2024/*", {"StringLike": {"s3:prefix": "2024/*"}}, True),
        (sky.Volume("s3://photos", "/data", read_only=True), "arn:aws:s3:::photos/*", None, False),
    ],
)
def test_the_token_opens_the_folder_of_the_volume_alone(
    bucket: Buckets, asked, volume: sky.Volume, read: str, listed: object, written: bool
) -> None:
    assert order_of(volume, sky.SSH("gpu1"))["token"]
    [policy] = [json.loads(given["Policy"]) for action, given in asked if "Policy" in given]
    [listing] = [each for each in policy["Statement"] if "s3:ListBucket" in each["Action"]]
    assert (listing["Resource"], listing.get("Condition")) == ("arn:aws:s3:::photos", listed)
    allowed = {each["Resource"]: set(each["Action"]) for each in policy["Statement"]}
    assert allowed.keys() == {"arn:aws:s3:::photos", read, "*"}
    assert allowed["*"] == {"kms:Decrypt", "kms:GenerateDataKey"}
    assert "s3:GetObject" in allowed[read]
    assert ("s3:PutObject" in allowed[read]) == written
    assert not any("*" in action for actions in allowed.values() for action in actions)


def test_where_only_the_policy_of_the_bucket_lets_the_user_in_the_token_is_the_users(
    bucket: Buckets, asked
) -> None:
    token = order_of(sky.Volume("s3://photos/closed", "/data"), sky.SSH("gpu1"))["token"]
    assert token
    assert token["fields"]["token"]
    ends = [action for action, _ in asked if action.startswith("Get")]
    assert ends == ["GetFederationToken", "GetSessionToken"]


def test_instances_with_a_role_are_sent_nothing(bucket: Buckets) -> None:
    assert order_of(VOLUME, sky.AWS(instance_profile="reads-photos"))["token"] is None


def test_a_token_is_sent_as_it_is(bucket: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-a-login")
    token = order_of(VOLUME, sky.SSH("gpu1"))["token"]
    assert token is not None
    assert token["fields"]["token"] == "of-a-login"


@pytest.fixture(params=["America/Los_Angeles", "Asia/Tokyo"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another time zone for this process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_a_google_token_ends_in_an_hour_wherever_the_user_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As the library has it: in UTC, without a time zone.
    expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
    found = SimpleNamespace(token="ya29", expiry=expiry, refresh=lambda request: None)
    for name, module in {
        "google.auth": SimpleNamespace(default=lambda scopes: (found, "project")),
        "google.auth.transport.requests": SimpleNamespace(Request=object),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    token = order_of(sky.Volume("gs://photos", "/data"), sky.SSH("gpu1"))["token"]
    assert token is not None
    expires = token["expires"]
    assert expires is not None
    assert 3500 < expires - time.time() <= 3600


def test_without_a_token_nodes_elsewhere_get_nothing(
    bucket: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UsageError, match="is not sent to nodes, and AWS gives no session token"):
        order_of(VOLUME, sky.SSH("gpu1"))
    # To nodes of this computer it leaves nothing.
    assert order_of(VOLUME, sky.Local())["token"] is not None


ROLE = """
[profile work]
role_arn = arn:aws:iam::123456789012:role/work
credential_source = Environment
"""


def test_a_role_that_is_refused_is_said_in_a_sentence(
    bucket: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    def refuse(client: Any, action: str, given: dict[str, Any]) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "Not yours"}}, action)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    (tmp_path / "config").write_text(ROLE)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(UsageError, match=r"^s3://photos/2024: .* AssumeRole operation: Not yours"):
        order_of(VOLUME, sky.AWS(profile="work"))


def test_a_code_of_the_users_device_is_asked_for_once(
    bucket: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"{ROLE}mfa_serial = arn:aws:iam::123456789012:mfa/anna\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr(getpass, "getpass", lambda text: asked.append(text) or "123456")
    provider = sky.AWS(profile="work")
    # Where nodes are sent new ones, nobody may be there to answer.
    with without_questions(), pytest.raises(SkyError, match="the code of your device is needed"):
        order_of(VOLUME, provider)
    for _ in ("checked before the start", "sent to nodes"):
        token = order_of(VOLUME, provider)["token"]
        assert token is not None
        assert token["expires"] is not None
    with without_questions():
        assert order_of(VOLUME, provider)["token"] == token
    assert len(asked) == 1


def test_rented_machines_with_what_is_nowhere_else_are_not_given_back() -> None:
    trouble = "not written to s3://photos: /data/model, on node 0 alone (access is denied)"
    mounts = SimpleNamespace(
        volumes=(VOLUME,), write_back=lambda tick: (tick(), ([], [trouble]))[1]
    )
    rented: Any = SimpleNamespace(name="train", provider=sky.AWS(), mounts=mounts, alive=True)
    with pytest.raises(SkyError, match=r"/data/model, on node 0 alone .* `%sky down --discard`"):
        write_back_or_refuse(rented)
    rented.alive = False  # then `%sky get` would end what is left of it
    with pytest.raises(
        SkyError, match=r"on node 0 alone .* `%sky down` tries again, and `%sky down"
    ):
        write_back_or_refuse(rented)
    write_back_or_refuse(SimpleNamespace(**{**vars(rented), "provider": sky.SSH("gpu1")}))  # type: ignore[arg-type]
