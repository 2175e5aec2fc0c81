"""What a run's cell and strip say of where its ranks are, while some of them wait for others."""

from __future__ import annotations

import time

from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.runs.task import HangNotice

_JUST_BEFORE = 6.0  # seconds
_ASK = "`jupyter sky where` in a terminal shows the stacks"


class HangReport:
    """Where the ranks of a run are, and what the user was told of it.

    Attributes
    ----------
    findings
        Where the ranks are, while one waits for another.
    text
        The same in words, if the user should know or has asked; or who waits at a prompt.
    """

    def __init__(self) -> None:
        self.findings: Findings | None = None
        self.text: str | None = None
        self._last: tuple[Findings, float] | None = None
        self._asked_for: Findings | None = None
        self._told = ("", 0.0)

    @property
    def is_warning(self) -> bool:
        """Whether ``text`` is more than the answer to a user who has asked."""
        is_long = bool(self._told[0])
        return self.text is not None and (is_long or not self._asked_for)

    def update(self, found: Findings | None, is_long: bool, asked: str) -> HangNotice | None:
        """Take in where the ranks are, and return what the cell should say of it.

        Parameters
        ----------
        found
            Where they are; ``None`` if none waits for another.
        is_long
            Whether they wait so long that the user should know.
        asked
            Which ranks wait for the user; empty if none does.
        """
        if found and found.has_failed:
            # Until its error arrives, the findings before it say who waited for whom.
            if self.findings:
                self._last = (self.findings, time.monotonic())
            return None
        before, self.findings = self.findings, found
        if found:
            self._last = (found, time.monotonic())
        if asked:
            # Others wait for a rank that waits for the user: that is no hang.
            self.text = f"{found.sentence}." if found else asked
            return None
        key, seconds = self._told
        if found and is_long:
            self._asked_for = found if self._asked_for else None
            self.text = found.text if self._asked_for else f"{found.sentence}."
            # Not every second, which would fill a file or a terminal.
            if found.key != key or found.seconds > 2 * seconds:
                self._told = (found.key, found.seconds)
                # Another cell would have to wait for this one; its strip has a button for stacks.
                return HangNotice(f"{found.sentence}; {_ASK}")
        elif key:
            self.text, self._told, self._asked_for = None, ("", 0.0), None
            past = f": {before.past}" if before else ""
            return HangNotice(f"the ranks have gone on{past}", is_over=True)
        return None

    def show(self, found: Findings) -> None:
        """Show where the ranks are, with their stacks, because the user has asked."""
        self.text, self._asked_for = found.text, found

    def just_before(self, moment: float) -> Findings | None:
        """Return where the ranks were when one last waited for another, if not long before.

        Parameters
        ----------
        moment
            By the monotonic clock. An error arrives some time after the wait that it ended.
        """
        if self._last is None:
            return None
        found, at = self._last
        return found if moment - at < _JUST_BEFORE else None

    def end(self) -> None:
        """Show nothing any more, except where ranks were to a user who has asked."""
        self.text = self._asked_for.past_text if self._asked_for else None
