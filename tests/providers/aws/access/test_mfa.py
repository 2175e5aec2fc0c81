"""A profile that needs a code of the user's device: it is asked for once, never in giving back."""

from __future__ import annotations

import getpass
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.sessions import mfa
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.tasks import blocking
from tests.providers.aws.stand_in.account import Account
from tests.waiting import until

CONFIG = """
[profile base]
aws_access_key_id = base
aws_secret_access_key = secret

[profile work]
role_arn = arn:aws:iam::123456789012:role/work
source_profile = base
mfa_serial = arn:aws:iam::123456789012:mfa/anna
"""


@pytest.fixture
def asked(account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The questions that the user of such a profile is asked, and answers."""
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    texts: list[str] = []
    monkeypatch.setattr(getpass, "getpass", lambda text: texts.append(text) or "123456")
    return texts


def test_a_code_is_asked_for_once(account: Account, asked: list[str], tmp_path: Path) -> None:
    for region in ("us-east-1", "eu-west-1"):
        assert "assumed-role/work" in Clients(region, "work").ask_user()
    assert len(asked) == 1
    assert account.actions.count("AssumeRole") == 1
    # Another kernel, hours later, that gives back.
    shutil.rmtree(tmp_path / ".aws")
    with mfa.without_questions(), pytest.raises(SkyError, match="the code of your device is need"):
        Clients("us-east-1", "work").ask_user()
    assert len(asked) == 1


def test_stop_at_the_question_ends_it(
    account: Account, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(text: str) -> NoReturn:
        asked.append(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(getpass, "getpass", stop)
    errors: list[SkyError] = []

    async def use() -> None:
        try:
            await blocking(lambda: Clients("us-east-1", "work").ask_user())
        except SkyError as error:
            errors.append(error)

    with pytest.raises(KeyboardInterrupt):
        event_loop.wait_uninterrupted(use())
    until(lambda: errors)
    assert "the code of your device was not given" in str(errors[0])
    assert len(asked) == 1


def test_a_program_may_use_it_in_a_thread_for_which_nobody_waits(asked: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(lambda: Clients("us-east-1", "work").ask_user()).result()
    assert "assumed-role/work" in said
    assert len(asked) == 1


def test_calls_go_on_where_credentials_cannot_be_kept(asked: list[str], tmp_path: Path) -> None:
    """Else nothing could be ended while the disk is full."""
    (tmp_path / ".aws").write_text("no folder can be made here")
    assert "assumed-role/work" in Clients("us-east-1", "work").ask_user()
    assert len(asked) == 1
