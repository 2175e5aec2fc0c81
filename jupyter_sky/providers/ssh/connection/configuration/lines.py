"""The lines of ``~/.ssh/config``, of the files that it includes, and of the system's own.

paramiko knows no ``Include``, takes comments at the end of a line for values, and proxies for
something else than ssh does.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from jupyter_sky.errors import UsageError

_DEEPEST = 16  # most levels of included files, as in OpenSSH
WAY, JUMPS, COMMAND = "skyway", "skyjumps", "skycommand"
"""What lines with ProxyJump and ProxyCommand are read as: whichever comes first holds.

paramiko does not know that, and reads ``~``, ``%n`` and ``%%`` in another way than ssh does. As
there, ``ProxyJump none`` is said of jump hosts alone, and ``ProxyCommand none`` of both.
"""

# Up to a number sign that begins a word, and is not in quotation marks.
_BEFORE_COMMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|\s+(?!\#|\s)|[^\s"'])*""")


def read_lines(path: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """Yield the lines of a file, including those of included files.

    Raises
    ------
    UsageError
        If one cannot be read.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if depth > _DEEPEST:
        raise UsageError(f"{path} is included too deeply: do its files include each other?")
    scope = "Host *" if not depth else ""
    for line in lines:
        word, _, rest = re.sub(r"\s*=\s*|\s+", " ", line.strip(), count=1).partition(" ")
        if word.lower() == "include":
            for pattern in shlex.split(rest, comments=True):
                place = folder / Path(pattern).expanduser()
                for each in sorted(glob.glob(str(place))):  # noqa: PTH207 - absolute patterns
                    yield from read_lines(Path(each), folder, depth + 1)
            # The following lines belong to the block around the Include, whatever the files have
            # begun.
            yield scope
            continue
        if word.lower() in ("host", "match"):
            scope = _without_comment(line)
        yield from _way_lines(word.lower(), rest) or [_without_comment(line)]


def _without_comment(line: str) -> str:
    """Return a line without the comment at its end, which paramiko takes for a value."""
    found = _BEFORE_COMMENT.match(line.strip())
    assert found is not None
    rest = line.strip()[found.end() :].lstrip()
    return found[0] if rest.startswith("#") else line


def _way_lines(word: str, text: str) -> list[str]:
    """Return the replacement of a line, if it is a proxy option."""
    if word == "proxycommand":
        # All of it is for a shell, including what would be quotes and comments elsewhere.
        return [f"{WAY} {COMMAND}", f"{COMMAND} {text.lstrip('= ')}"]
    if word == "proxyjump":
        jumps = "".join(shlex.split(text, comments=True)[:1])
        return [f"{WAY} {JUMPS}"] * (jumps.lower() != "none") + [f"{JUMPS} {jumps}"]
    return []
