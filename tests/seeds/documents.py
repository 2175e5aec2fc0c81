"""The code of the seed documents, as programs that run here.

Three things are changed, and nothing else: the import line; ``provider=sky.AWS()``, which becomes
``sky.Local()`` without accelerator; and ``.cuda()``, which is left out where no GPU is. A fragment
gets the names that its document takes for granted, and a pool where it has none.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

SEEDS = ROOT.parent / "shared" / "seeds"
PATTERNS = Path(__file__).parent / "patterns"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Document:
    """A document, by the number that its file name begins with."""

    number: str
    folders: tuple[Path, ...] = (SEEDS, PATTERNS)

    @property
    def text(self) -> str:
        """The document itself where it is at hand, else what this project wrote after it."""
        for folder in self.folders:
            for path in folder.glob(f"{self.number}*"):
                return path.read_text()
        raise FileNotFoundError(self.number)

    @property
    def pattern(self) -> Document:
        """What this project wrote after it."""
        return Document(self.number, (PATTERNS,))

    def blocks(self, language: str) -> list[str]:
        """Return its blocks in a language, without those that only include a file."""
        found = [body for name, body in _FENCE.findall(self.text) if name == language]
        return [body for body in found if not body.startswith("--8<--")]

    def find(self, beginning: str, end: str) -> str:
        """Return the code from ``beginning`` to ``end`` in a document without blocks."""
        start = self.text.index(beginning)
        return self.text[start : self.text.index(end, start) + len(end)]


def local(code: str, gpu: bool) -> str:
    """Make the three changes."""
    code = code.replace("import skyward as sky", "import jupyter_sky as sky")
    code = code.replace("provider=sky.AWS()", "provider=sky.Local()")
    code = re.sub(r"^\s*accelerator=.*\n", "", code, flags=re.MULTILINE)
    return code if gpu else code.replace(".cuda()", "")


def indented(code: str) -> str:
    """Return code as it stands inside of a function."""
    return textwrap.indent(code, "    ")
