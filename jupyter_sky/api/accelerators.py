"""The accelerators that can be requested by name: ``sky.accelerators.A100(count=8)``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_names
from jupyter_sky.providers.spec import Accelerator

# The last CUDA version that supports an architecture; current ones have none yet.
_KEPLER = "11.8"
_VOLTA = "12.9"  # Maxwell and Pascal too
_CURRENT = "13.0"
_OTHER = None  # not programmed in CUDA

# name: (memory of one in GB, last CUDA version)
_CATALOGUE: dict[str, tuple[float, str | None]] = {
    # NVIDIA, data centre
    "K80": (12, _KEPLER),
    "M60": (8, _VOLTA),
    "P4": (8, _VOLTA),
    "P40": (24, _VOLTA),
    "P100": (16, _VOLTA),
    "V100": (16, _VOLTA),
    "V100-32GB": (32, _VOLTA),
    "T4": (16, _CURRENT),
    "T4G": (16, _CURRENT),
    "A2": (16, _CURRENT),
    "A10": (24, _CURRENT),
    "A10G": (24, _CURRENT),
    "A16": (16, _CURRENT),
    "A30": (24, _CURRENT),
    "A40": (48, _CURRENT),
    "A100": (40, _CURRENT),
    "A100-80GB": (80, _CURRENT),
    "L4": (24, _CURRENT),
    "L40": (48, _CURRENT),
    "L40S": (48, _CURRENT),
    "H100": (80, _CURRENT),
    "H100-NVL": (94, _CURRENT),
    "H200": (141, _CURRENT),
    "GH200": (96, _CURRENT),
    "B200": (180, _CURRENT),
    "GB200": (186, _CURRENT),
    "B300": (288, _CURRENT),
    # NVIDIA, workstation
    "GTX1080Ti": (11, _VOLTA),
    "RTX2080Ti": (11, _CURRENT),
    "RTX3060": (12, _CURRENT),
    "RTX3090": (24, _CURRENT),
    "RTX4080": (16, _CURRENT),
    "RTX4090": (24, _CURRENT),
    "RTX5080": (16, _CURRENT),
    "RTX5090": (32, _CURRENT),
    "RTX4000": (8, _CURRENT),
    "RTX5000": (16, _CURRENT),
    "RTX6000": (24, _CURRENT),
    "RTXA4000": (16, _CURRENT),
    "RTXA5000": (24, _CURRENT),
    "RTXA6000": (48, _CURRENT),
    "RTX6000-Ada": (48, _CURRENT),
    "RTXPRO6000": (96, _CURRENT),
    # others
    "MI100": (32, _OTHER),
    "MI250X": (128, _OTHER),
    "MI300X": (192, _OTHER),
    "MI325X": (256, _OTHER),
    "Gaudi": (32, _OTHER),
    "Gaudi2": (96, _OTHER),
    "Inferentia": (8, _OTHER),
    "Inferentia2": (32, _OTHER),
    "Trainium": (32, _OTHER),
    "Trainium2": (96, _OTHER),
}


def parse(text: str) -> Accelerator:
    """Return the accelerator of a short form like ``"L4"``, ``"L4:4"`` or ``"a100-80gb:8"``.

    Parameters
    ----------
    text
        A name of the catalogue, ignoring case, ``-``, ``_`` and blanks, optionally followed by a
        colon and the number per node.

    Raises
    ------
    UsageError
        If there is no such accelerator; the message suggests similar names.
    """
    name, colon, count = text.partition(":")
    if colon and not re.fullmatch(r"\s*[1-9]\d*\s*", count):
        raise UsageError(f'"{text}" has no whole number after the colon: type "{name}:4".')
    return _make(_find(name), int(count) if colon else 1)


def as_accelerator(value: Accelerator | str | None) -> Accelerator | None:
    """Return the accelerator that a user has given, as one or by its name."""
    return parse(value) if isinstance(value, str) else value


def names() -> list[str]:
    """Return the names of all accelerators in the catalogue."""
    return list(_CATALOGUE)


def __getattr__(attribute: str) -> Callable[..., Accelerator]:
    """Return the factory of an accelerator: ``sky.accelerators.T4()``."""
    if attribute.startswith("_"):  # looked up by Python and IPython, never by a user
        raise AttributeError(attribute)
    try:
        return partial(_make, _find(attribute))
    except UsageError as error:
        raise _NoSuchAccelerator(str(error)) from None


def __dir__() -> list[str]:
    return ["names", "parse", *(name.replace("-", "_") for name in _CATALOGUE)]


class _NoSuchAccelerator(UsageError, AttributeError):
    """An unknown name after ``sky.accelerators.``; for `hasattr` it is an AttributeError."""


def _make(name: str, count: int = 1) -> Accelerator:
    memory, cuda = _CATALOGUE[name]
    return Accelerator(name, count=count, memory=memory, cuda=cuda)


def _find(name: str) -> str:
    known = {_plain(each): each for each in _CATALOGUE}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    near = [known[each] for each in similar_names(wanted, known, 3, 0.5)]
    instead = f"did you mean {' or '.join(near)}?" if near else "type one like L4, A100 or H100."
    raise UsageError(f'there is no accelerator "{name.strip()}": {instead}')


def _plain(name: str) -> str:
    """Normalise the spelling of a name."""
    return re.sub(r"[\s_-]+|nvidia|tesla|geforce", "", name.lower())
