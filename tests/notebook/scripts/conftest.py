"""A notebook whose nodes are hosts of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.kernels import LiveNotebook
from tests.notebook.programs.conftest import terminal
from tests.providers.ssh.conftest import client, opened_over_ssh

__all__ = ["client", "terminal"]


@pytest.fixture
def over_ssh(client: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook in a folder that the hosts do not see as theirs."""
    with opened_over_ssh(client, tmp_path) as made:
        yield made
