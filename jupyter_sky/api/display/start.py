"""Starts the cluster of a pool where there are machines for it, and shows the progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.api.display.wording import shell_here, warn
from jupyter_sky.api.environment.imports import modules_in, modules_typed
from jupyter_sky.api.environment.resolve import able_to_complete, makes_environments, resolve
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.cluster import stopped
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import Declined, SkyError
from jupyter_sky.formatting import is_terminal
from jupyter_sky.providers.choice import Candidate, Selection, in_order
from jupyter_sky.serialization import pickling


def start(place: Candidate, plugins: Sequence[Plugin]) -> Cluster:
    """Start a cluster at a provider.

    The progress is shown in a notebook, as for a cell, in a terminal, and by a script if machines
    have to be prepared.

    Raises
    ------
    UsageError
        If it is not possible.
    SkyError
        If it does not start.
    """
    image = place.spec.image
    provider = able_to_complete(place.provider, plugins, _modules)
    if makes_environments(provider):
        image, left_out = resolve(image, plugins, _modules())
        for sentence in left_out:
            warn(sentence, stacklevel=5)
    spec, runtime_env = assemble(replace(place.spec, image=image), plugins)
    shell = shell_here()
    is_shown = hasattr(shell, "kernel") or makes_environments(provider)
    if not is_shown and not is_terminal(sys.stderr):
        return Cluster.start(spec, provider, runtime_env)
    with ProgressLine(shell, spec.name) as line:
        cluster = Cluster.start(spec, provider, runtime_env, line.update)
        with _ended_on_error(cluster):  # for example if nobody can read it
            line.update(f"{describe(cluster)}, ready in {line.seconds:.1f} s")
    return cluster


def start_first(
    place: Candidate,
    candidates: Sequence[Candidate],
    selection: Selection,
    plugins: Sequence[Plugin],
) -> tuple[Candidate, Cluster]:
    """Start a cluster at the first provider that has machines for it; return which one it is.

    Parameters
    ----------
    place
        The provider, if there are no others to choose from.
    candidates, selection
        The providers to choose from, and which of them to try first.
    plugins
        The plugins.

    Raises
    ------
    UsageError, SkyError
        As for `start`.
    Interrupted
        If the user stops it.
    """
    with stopped.start_of(place.spec.name):
        tried, refused = [place], list[str]()
        if candidates:
            found, refused = in_order(candidates, selection)
            tried = [each for each, _ in found]
        for each in tried:
            try:
                cluster = start(each, plugins)
            except Declined:
                raise
            except SkyError as error:
                if len(candidates) < 2:
                    raise
                refused.append(f"{each.name}: {error}".rstrip("."))
                continue
            if refused:
                sentence = f"{cluster.name} is on {each.name}, because of {'; '.join(refused)}."
                with _ended_on_error(cluster):  # warnings can be errors
                    warn(sentence, stacklevel=3)
            return each, cluster
        raise SkyError(f"no nodes at any of {len(tried)} places: {'; '.join(refused)}.")


@contextlib.contextmanager
def _ended_on_error(cluster: Cluster) -> Iterator[None]:
    """End a cluster where something goes wrong before its pool has it."""
    try:
        yield
    except BaseException:
        cluster.down()
        raise


def _modules() -> frozenset[str]:
    """Return the modules that this notebook or script imports."""
    return modules_in(pickling.main_namespace()) | modules_typed(_sources())


def _sources() -> Iterator[str]:
    """Yield the source of this notebook's cells, or of the running script."""
    if shell := shell_here():
        yield from getattr(shell.history_manager, "input_hist_raw", ())
    elif file := getattr(sys.modules.get("__main__"), "__file__", None):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield Path(file).read_text()
