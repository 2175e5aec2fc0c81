"""What a launch has left is found and given back, by who started it and as who started it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.aws import local_store
from jupyter_sky.providers.aws.clients import Clients
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.starting import SPEC, provider, start

Left = Callable[[], list[str]]


@pytest.fixture
def ready(account: Account, subnet: str, clients: Clients) -> str:
    """A subnet to start in; types and prices are known, and what was asked so far is forgotten."""
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    return subnet


def test_what_another_registry_started_is_left_alone(
    account: Account, ready: str, left: Left, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "other"))

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances":
            return refusal("InternalError", "it does not work", "400 Bad Request")
        return carry_out()

    account.fault = refuse
    with pytest.raises(SkyError, match=r"something may still be there and cost money \(train: 4 i"):
        start(ready)
    account.fault = None
    assert registry.find("train") is not None
    [rental], _ = cloud_resources.find()
    assert rental.is_orphaned, "the kernel that started it may still be alive"
    (home() / "registry.sqlite").unlink()
    [rental], _ = cloud_resources.find()
    assert rental.is_orphaned, "its own registry may be lost, and it is known all the same"
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "third"))
    local_store.add_location("us-east-1")
    [rental], _ = cloud_resources.find()
    assert not rental.is_known
    assert not rental.is_orphaned
    rental.remove()
    assert left() == []


def test_gc_asks_as_the_profile_that_started(
    account: Account,
    subnet: str,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Where nobody has asked with other credentials, which may see the same.
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))
    config = tmp_path / "config"
    config.write_text(
        "[profile work]\naws_access_key_id = worker\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances":
            return refusal("InternalError", "it does not work", "400 Bad Request")
        return carry_out()

    account.fault = refuse
    account.calls.clear()
    with pytest.raises(SkyError, match="something may still be there"):
        start(subnet, profile="work")
    assert {call.who for call in account.calls} == {"worker"}
    account.fault = None
    account.calls.clear()
    [rental], _ = cloud_resources.find()
    assert str(rental).endswith("in us-east-1 as work")
    config.write_text("")
    found, [sentence] = cloud_resources.find()
    assert "what is rented in us-east-1 as work cannot be listed: The config profile" in sentence
    assert not [each for each in found if each.resources.what]
    config.write_text(
        "[profile work]\naws_access_key_id = worker\naws_secret_access_key = secret\n"
    )
    rental.remove()
    assert {call.who for call in account.calls} == {"worker"}
    assert left() == []
