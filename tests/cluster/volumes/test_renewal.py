"""Credentials of volumes are sent again and again, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.volumes import mount
from tests.lab.buckets import serving


def test_credentials_without_time_left_are_not_renewed_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mount, "_RENEW_BEFORE", 0)
    with serving():
        volumes = [sky.Volume("s3://photos/2024", "/data")]
        at = asyncio.run(mount.mount([], volumes, sky.SSH("gpu1"), list))
    assert at is not None
    assert at > time.time() + 50
