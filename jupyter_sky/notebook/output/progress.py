"""Lines that appear when needed: for the progress of an upload, and for notices."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.formatting import format_bytes
from jupyter_sky.notebook.kernel import as_typed
from jupyter_sky.providers.progress import Preparation


class NoticeLine:
    """A line that appears with the first notice.

    Parameters
    ----------
    shell
        The shell of the notebook.
    title
        The beginning of the line.
    """

    def __init__(self, shell: InteractiveShell, title: str) -> None:
        self._shell = shell
        self._title = title
        self._line: ProgressLine | None = None

    @property
    def is_shown(self) -> bool:
        """Whether there has been a notice."""
        return self._line is not None

    def update(self, text: str | Preparation) -> None:
        """Replace the text of the line."""
        if self._line is None:
            self._line = ProgressLine(self._shell, self._title)
        self._line.update(as_typed(text) if isinstance(text, str) else text)


_LARGE = 32_000_000  # least bytes for which progress is shown
_STEPS = 10
_MOST = 3  # most hosts to name


class SendingLine:
    """Shows which names are being sent, their size, and how much has arrived where.

    As a context manager, it also shows that an error has ended this before all had arrived.

    Parameters
    ----------
    shell
        The shell of the notebook.
    title
        The beginning of the line.
    sizes
        The bytes to send for each name; if they are few in total, nothing is shown.
    """

    def __init__(self, shell: InteractiveShell, title: str, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        self._line = ProgressLine(shell, title) if total >= _LARGE else None
        largest = sorted(sizes, key=lambda name: -sizes[name])
        # Names that are small compared with the rest do not take the time.
        named = [name for name in largest if sizes[name] >= total / 20]
        self._names = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in named)
        self._done = ""
        self._is_over = False
        self._show("0%")

    def __enter__(self) -> SendingLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")

    def update(self, progress: TransferProgress) -> None:
        """Show the progress; cheap enough to be called for each percent."""
        if self._line is None:
            return
        self._is_over = progress.arrived >= progress.total
        if not progress.total:
            done = "already there"
        elif self._is_over:
            done = f"sent in {self._line.seconds:.1f} s"
        else:
            done = _shares(progress)
        if done != self._done:
            self._show(done, progress.note)

    def end(self, word: str) -> None:
        """Say in a word how sending has ended, unless all of it has arrived."""
        if not self._is_over:
            self._show(word)

    def _show(self, done: str, note: str = "") -> None:
        self._done = done
        if self._line is not None:
            self._line.update(f"sending {self._names}: {done}{f' ({note})' if note else ''}")


def _shares(progress: TransferProgress) -> str:
    """Format how much has arrived: one number, or one for each host if they differ."""
    steps = {name: int(_STEPS * share) for name, share in progress.shares.items()}
    if len(set(steps.values())) < 2:
        return f"{min(steps.values(), default=0) * 100 // _STEPS}%"
    slowest = sorted(steps, key=lambda name: steps[name])
    there = [name for name in slowest if steps[name] == _STEPS]
    late = [name for name in slowest if steps[name] < _STEPS]
    parts = [f"{steps[name] * 100 // _STEPS}% on {name}" for name in late[:_MOST]]
    if len(late) > _MOST:
        parts.append(f"more on {len(late) - _MOST} others")
    if there:
        parts.append(f"all of it on {', '.join(there) if len(there) <= _MOST else len(there)}")
    return ", ".join(parts)
