"""Hugging Face: its libraries on the nodes, and a token for its hub."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import install
from jupyter_sky.providers.spec import Image


def huggingface(token: str | None = None) -> Plugin:
    """Install transformers, datasets and tokenizers on the nodes.

    Parameters
    ----------
    token
        A token for the hub. It is in ``HF_TOKEN`` of ranks, and is not written to the disk of a
        node, as ``huggingface-cli login`` would do.

    Raises
    ------
    UsageError
        If the token is empty.
    """
    if token is not None and (not isinstance(token, str) or not token.strip()):
        raise UsageError('token is empty: type token="hf_…", or leave it out for public models.')
    return Plugin(
        "huggingface",
        transform=_install_huggingface,
        around_process=partial(_logged_in, token=_Token(token)) if token else None,
    )


@dataclass(frozen=True)
class _Token:
    """Keeps the token out of the plugin's repr, which notebooks show and save."""

    value: str = field(repr=False)


def _install_huggingface(image: Image, cluster: Any) -> Image:
    return install(image, ["transformers", "datasets", "tokenizers"])


def _logged_in(info: InstanceInfo, token: _Token) -> AbstractContextManager[None]:
    return environment({"HF_TOKEN": token.value})
