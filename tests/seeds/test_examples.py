"""Every example of the documents runs, changed in nothing but its import and its provider."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds.documents import FILES, PRESENT, blocks, local
from tests.seeds.programs import PROGRAMS

WITH_PYTHON = [document for document in FILES if document != "torchrun"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    import torch

    program = PROGRAMS[name]
    script = tmp_path / "script.py"
    script.write_text(program.script(gpu=torch.cuda.is_available()))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(program.prints, done.stdout), done.stdout


def test_every_block_is_in_a_program() -> None:
    there = {(document, i) for document in WITH_PYTHON for i in range(len(blocks(document)))}
    assert {place for program in PROGRAMS.values() for place in program.places} == there


@pytest.mark.skipif(not PRESENT, reason="the documents are not beside the repository")
@pytest.mark.parametrize("document", WITH_PYTHON)
def test_nothing_but_import_provider_and_gpu_is_changed(document: str) -> None:
    may_change = re.compile(
        r"import skyward as sky|provider=sky\.AWS\(\)| *accelerator=|.*\.cuda\(\)"
    )
    for block in blocks(document):
        changed = set(block.splitlines()) - set(local(block, gpu=False).splitlines())
        assert all(may_change.match(line.strip()) for line in changed)


@pytest.mark.skipif(not PRESENT, reason="the documents are not beside the repository")
@pytest.mark.parametrize("document", FILES)
def test_patterns_call_what_the_documents_call(document: str) -> None:
    assert len(blocks(document, present=False)) == len(blocks(document))
    if document in WITH_PYTHON:
        for ours, theirs in zip(blocks(document, present=False), blocks(document), strict=True):
            assert calls(ours) == calls(theirs)


def calls(block: str) -> set[str]:
    """Return what a block uses of ours: names, and the keywords that it gives to each."""
    code = block if block.rstrip()[-1] != ":" else f"{block}    ..."
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)).startswith("sky."):
            found.add(name)
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("sky."):
            found.update(f"{name}({keyword.arg}=)" for keyword in node.keywords)
        if isinstance(node, ast.MatMult):
            found.add("@")
    return found
