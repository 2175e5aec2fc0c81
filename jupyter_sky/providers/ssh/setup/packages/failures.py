"""Advice if uv could not make an environment: one sentence for each known cause."""

from __future__ import annotations

import re

from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.packages import base_requirements, download_line, package_name, sources
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError
from jupyter_sky.providers.ssh.setup.packages.recipe import Recipe

_UNREACHED = re.compile(
    r"dns error|[Ff]ailed to fetch|error sending request|[Cc]ould not connect|tcp connect error"
)
_DENIED = re.compile(r"\b(401|403)\b|[Uu]nauthorized|[Ff]orbidden")
_NO_PYTHON = re.compile(r"`uv venv .*No interpreter found")
_NOT_RUN = re.compile(r"/bin/uv(-\w+)?: Permission denied")
_ABSENT = (
    r"there (?:is|are) no versions? of {}\b",
    r"\b{} was not found",
    r"\b{}==\S+ has no ",
    r"\b{}==\S+ (?:is|was) yanked",
    r"\b{}[^;]* not compatible with the current",
)
_NOT_BUILT = (r"[Ff]ailed to build[^\n]*{}\b", r"[Ff]ailed to download and build[^\n]*{}\b")


def explain(said: str, image: Image, recipe: Recipe, machine: str, cuda: bool) -> str | None:
    """Return a sentence about uv's error with advice; ``None`` if uv's own message is best.

    Parameters
    ----------
    said
        The last lines of uv's output.
    image
        The image of the environment.
    recipe
        What it is made of.
    machine
        The kind of machine that it is for, like ``"x86_64"``.
    cuda
        Whether it is for NVIDIA GPUs.
    """
    text = " ".join(said.split())
    is_unreached = bool(_UNREACHED.search(text) and not _DENIED.search(text))
    if _NO_PYTHON.search(text) or (is_unreached and "`uv venv " in text):
        return (
            f"it has no Python {recipe.python}, and cannot download it: install it there, or name "
            "an interpreter of that version with `%config Sky.python`"
        )
    for pin in base_requirements(image):
        name = re.escape(package_name(pin)).replace(r"\-", r"[-_.]")
        for patterns, trouble in ((_ABSENT, "cannot be had there"), (_NOT_BUILT, "does not build")):
            if any(re.search(each.format(name), text, re.IGNORECASE) for each in patterns):
                return f"{_whose(image)} {pin.replace('==', ' ')}, which {trouble}: {_ways(pin)}"
    at_hand = sources(image)
    if at_hand.no_index and (lacks := re.findall(r"(\S+) was not found in the provided", text)):
        folder = at_hand.folders[0].url
        lacks = [*dict.fromkeys(lacks)]
        line = download_line(folder, lacks, machine=machine)
        these = "it" if len(lacks) == 1 else "them"
        return f"{folder} has no {', '.join(lacks)}: `{line}` gets {these}"
    if _NOT_RUN.search(text):
        return (
            "programs may not be run where its environments are, which may be mounted with noexec: "
            "set XDG_CACHE_HOME there to a folder where they may, or name an environment that "
            "exists with `%config Sky.python`"
        )
    if is_unreached:
        return f"it reaches no package index: {_take_along(image, recipe, machine, cuda)}"
    return None


def _take_along(image: Image, recipe: Recipe, machine: str, cuda: bool) -> str:
    """Return the lines with which to make an environment from wheels of this computer."""
    indexes = [each for each in sources(image, cuda).indexes if "@" not in each.url]
    line = download_line("wheels", recipe.asked, indexes, machine)
    return f"`{line}` gets what it needs, and `--wheels wheels` takes it along"


def _whose(image: Image) -> str:
    return f"{image.packages_file} asks for" if image.packages_file else "the notebook has"


def _ways(pin: str) -> str:
    name = package_name(pin)
    return (
        f"`--pip '{name}>0'` takes another version, `--wheels FOLDER` takes one along from here, "
        "and `--env none` leaves out what is not named"
    )


def indented(error: CommandError) -> str:
    """Return the lines of an error, to be shown below a sentence about it."""
    return without_secrets(str(error)).replace("\n", "\n    ")
