"""The documents whose examples have to run here, and the code in them.

They lie in ``shared/seeds`` beside the repository. Where that folder is absent, `patterns` stands
for them: the same calls in code of our own, block by block.
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
PATTERNS = Path(__file__).parent / "patterns"

# One more document shows only line numbers of a file elsewhere; `programs` says what the lines are.
FILES = {
    "plugin": "000_717aac516c851882.txt",
    "guide": "002_15255998eda86890.txt",
    "concepts": "003_21c6dceee03617f6.txt",
    "torchrun": "004_202c64a528ae1ec8.txt",
}
"""What the tests call the documents, and their names in the folder of seeds."""

PRESENT = SEEDS.is_dir()


@cache
def blocks(document: str, present: bool = PRESENT) -> tuple[str, ...]:
    """Return the blocks of code in a document, or in what stands for it, in their order."""
    return _blocks(SEEDS / FILES[document] if present else PATTERNS / f"{document}.md")


def local(code: str, gpu: bool) -> str:
    """Make of an example one for this machine: its module, its provider, no GPU to launch.

    Without a GPU there is also nothing that ``.cuda()`` could mean.
    """
    code = code.replace("import skyward as sky", "import jupyter_sky as sky")
    code = code.replace("provider=sky.AWS()", "provider=sky.Local()")
    code = re.sub(r"^ *accelerator=.*,\n", "", code, flags=re.MULTILINE)
    return code if gpu else code.replace(".cuda()", "")


def _blocks(path: Path) -> tuple[str, ...]:
    text = path.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    if fenced:
        return tuple(textwrap.dedent(block) for block in fenced)
    # Where the fences are lost, code is what reads as Python, and no sentence of English does.
    paragraphs = (f"{paragraph.strip()}\n" for paragraph in re.split(r"\n{2,}", text))
    return tuple(paragraph for paragraph in paragraphs if _is_python(paragraph))


def _is_python(paragraph: str) -> bool:
    for completion in ("", "    ..."):
        try:
            ast.parse(paragraph + completion)
        except SyntaxError:
            continue
        return True
    return False
