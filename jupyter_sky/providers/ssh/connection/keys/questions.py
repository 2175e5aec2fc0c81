"""What a host asks the user besides or in place of a key: passwords, codes, second factors.

A password is asked for once, and used again where the connection breaks. Codes are valid only once:
where nobody can be asked at that moment, the host is not let in until somebody can.
"""

from __future__ import annotations

import getpass
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_sky.providers.ssh.connection.errors import LoginError
from jupyter_sky.providers.ssh.connection.ssh_config import Login
from jupyter_sky.transport import event_loop

if TYPE_CHECKING:
    import paramiko

ANSWER_WITHIN = 120.0
"""Seconds for the user to answer; servers usually wait as long for a login."""

TIMED_OUT = "Authentication timeout"
"""As paramiko says it, in an error of a kind that means several things."""

_TRIES = 3
_STEPS = 4  # most that a host may want one after the other
_MOST_SHOWN = 2000
_INTERACTIVE, _PASSWORD = "keyboard-interactive", "password"

_passwords: dict[tuple[str, str, int], str] = {}
_enough: set[tuple[str, str, int]] = set()  # logins for which the password is all that is asked
_asking = threading.Lock()


def answer(transport: paramiko.Transport, login: Login, allowed: Sequence[str] | None) -> bool:
    """Ask the user what a host asks, and return whether that lets them in.

    Parameters
    ----------
    allowed
        The methods that the host allows now; ``None`` if it has not said.

    Raises
    ------
    LoginError
        If the user's answers do not let them in.
    """
    import paramiko

    asked = _Questions(login)
    transport.auth_timeout = max(ANSWER_WITHIN, transport.auth_timeout)
    # A login that is begun and not finished counts as one that failed, and may end in a lock-out;
    # some send something to the user's telephone each time.
    if not asked.can_begin:
        return False
    for _ in range(_TRIES + _STEPS):
        methods = [each for each in login.asks if allowed is None or each in allowed]
        if not methods or asked.cannot_ask or asked.wrong == _TRIES:
            break
        asked.begin()
        try:
            if methods[0] == _INTERACTIVE:
                allowed = transport.auth_interactive(login.user, asked.answers)
            else:
                [password] = asked.answers("", "", [("Password: ", False)]) or [""]
                if asked.cannot_ask:
                    break
                allowed = transport.auth_password(login.user, password, fallback=False)
        except paramiko.BadAuthenticationType as error:
            allowed = error.allowed_types
        except paramiko.AuthenticationException as error:
            if TIMED_OUT in str(error):
                raise LoginError(
                    f"nobody answered it within {transport.auth_timeout:.0f} s"
                ) from None
            asked.was_wrong()
            if not transport.is_active():
                break
        else:
            if transport.is_authenticated():
                asked.note_success()
                return True
    if asked.wrong and not asked.cannot_ask:
        raise LoginError(f"it accepts none of the answers for {login.user}")
    return False


class _Questions:
    """Questions of one login.

    Attributes
    ----------
    cannot_ask
        Whether there is nobody to be asked.
    wrong
        How many answers of the user were wrong.
    """

    def __init__(self, login: Login) -> None:
        self.cannot_ask = False
        self.wrong = 0
        self._login = login
        self._key = login.user, login.address, login.port
        self._is_known = self._is_answered = False
        self._is_more = False

    @property
    def can_begin(self) -> bool:
        """Whether there is somebody to ask, or nothing that is not known."""
        is_known = self._key in _enough and self._key in _passwords
        return is_known or event_loop.somebody_waits()

    def begin(self) -> None:
        """Forget what was answered to a method before."""
        self._is_known = self._is_answered = False

    def note_success(self) -> None:
        """Note that the host lets the user in."""
        (_enough.discard if self._is_more else _enough.add)(self._key)

    def answers(
        self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str]:
        """Return the user's answers; none if nobody can be asked."""
        said: list[str] = []
        above = "".join(f"{each.strip()}\n" for each in (title, instructions) if each.strip())
        with _asking:
            for text, is_shown in prompts:
                is_password = not is_shown and re.search("password", text, re.IGNORECASE)
                known = _passwords.get(self._key) if is_password else None
                if known is not None:
                    self._is_known = True
                    said.append(known)
                    continue
                if (given := self._ask(f"{above}{text}", is_shown)) is None:
                    return []
                self._is_answered = True
                if is_password:
                    _passwords[self._key] = given
                else:
                    self._is_more = True
                said.append(given)
        return said

    def was_wrong(self) -> None:
        """Note that the host did not accept what was answered last."""
        if self._is_known or self._is_answered:
            _passwords.pop(self._key, None)
        self.wrong += self._is_answered

    def _ask(self, text: str, is_shown: bool) -> str | None:
        again = "Not accepted. " if self.wrong else ""
        plain = "".join(each for each in text if each.isprintable() or each == "\n")
        prompt = f"{again}({self._login.user}@{self._login.address}) {plain[:_MOST_SHOWN]}"
        try:
            return event_loop.call_in_waiting_thread(input if is_shown else getpass.getpass, prompt)
        except (event_loop.NoWaitingThread, EOFError, NotImplementedError, KeyboardInterrupt):
            # In paramiko's own thread, an error would end the connection in another way.
            self.cannot_ask = True
            return None
