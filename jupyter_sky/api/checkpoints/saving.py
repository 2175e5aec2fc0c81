"""A checkpoint that is being saved: can be waited for, and is reported once it is complete."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from jupyter_sky.api.checkpoints.folder import CheckpointFolder
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_duration
from jupyter_sky.transport import present_run


class Saving:
    """A checkpoint that is being saved, or was.

    A function may return it: the notebook gets it once it is saved.

    Attributes
    ----------
    path
        Its path.
    """

    def __init__(
        self, folder: CheckpointFolder, future: Future[Any], began: float, step: object = None
    ) -> None:
        self.path = folder.path
        self._step: float | None = None
        if isinstance(step, int | float) and math.isfinite(step):
            self._step = float(step)
        self._folder = folder
        self._began = began
        self._seconds = 0.0
        self._error: BaseException | None = None
        self._left = ""  # why its bucket does not have it yet
        self._over = threading.Event()
        self._was_told = False
        future.add_done_callback(self._end)

    def _end(self, future: Future[Any]) -> None:
        self._seconds = time.monotonic() - self._began
        try:
            self._settle(future.exception())
        except Exception as error:  # of a callback: it would be logged, and nobody would hear of it
            self._error = self._error or error
        finally:
            self._over.set()

    def _settle(self, error: BaseException | None) -> None:
        if error:
            self._error = self._folder.reason(error)
            self._folder.discard()
        else:
            self._left = self._folder.settle()
            if self._folder.is_first:
                present_run.report_saved(self.path, self._step, uploaded=not self._left)

    @property
    def done(self) -> bool:
        """Whether it is saved or has failed."""
        return self._over.is_set()

    def wait(self) -> None:
        """Wait until it is saved on all ranks.

        Raises
        ------
        SkyError
            If it could not be saved; the previous checkpoint is kept.
        """
        self._over.wait()
        was_told, self._was_told = self._was_told, True
        if self._error:
            raise explained(self._error, f"the checkpoint {self.path} was not saved")

        if not was_told:
            self._warn_of_left()

    def warn(self) -> None:
        """Wait, and warn if it could not be saved and nobody was told."""
        self._over.wait()
        if self._was_told:
            return
        if self._error:
            told = explained(self._error, f"the checkpoint {self.path} was not saved")
            warnings.warn(str(told), stacklevel=4)
        self._warn_of_left()

    def _warn_of_left(self) -> None:
        if self._left and self._folder.is_first:
            warnings.warn(
                f"the checkpoint {self.path} is complete on the nodes of this cluster, and not in "
                f"its bucket yet: {self._left}. It is written there after this cell, if the bucket "
                "can be reached then.",
                stacklevel=4,
            )

    def __reduce__(self) -> Any:
        self._over.wait()
        error = self._error and explained(self._error, "it was not saved")
        return _saved, (self.path, self._step, self._seconds, error)

    def __repr__(self) -> str:
        if not self.done:
            return f"<checkpoint {self.path}: being saved>"
        if self._error:
            return f"<checkpoint {self.path}: not saved>"
        if self._left:
            return f"<checkpoint {self.path}: saved on the nodes, not in its bucket yet>"
        return f"<checkpoint {self.path}: saved in {format_duration(self._seconds)}>"


def _saved(path: str, step: float | None, seconds: float, error: SkyError | None) -> Saving:
    """Return what is known of a checkpoint that is saved, or has failed, in another process."""
    saving = Saving.__new__(Saving)
    saving.path, saving._step, saving._seconds, saving._error = path, step, seconds, error
    saving._left, saving._over, saving._was_told = "", threading.Event(), True
    saving._over.set()
    return saving


def explained(error: BaseException, what: str) -> SkyError:
    """Return an error as one sentence that says what went wrong on which rank."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    for rank, (cause, *_) in failures.items():
        return SkyError(f"{what}: {_first_line(cause)} (rank {rank}).")
    return SkyError(f"{what}: {_first_line(error)}.")


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
