"""A notebook whose nodes are hosts of the lab."""

from __future__ import annotations

import pytest

from tests.notebook.kernels import LiveNotebook
from tests.notebook.programs.conftest import terminal
from tests.providers.ssh.conftest import kernel_over_ssh, same_client, same_kernel

__all__ = ["kernel_over_ssh", "same_client", "same_kernel", "terminal"]


@pytest.fixture
def over_ssh(same_kernel: LiveNotebook) -> LiveNotebook:
    """A notebook in a folder that the hosts do not see as theirs; its kernel is the file's."""
    return same_kernel
