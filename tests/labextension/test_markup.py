"""Panel and sidebar make elements and text, and never markup: what a rank prints stays text."""

from __future__ import annotations

import re

import pytest

from tests.paths import ROOT

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|DOMParser|createContextualFragment|document\.write|"
    r"srcdoc|dangerouslySet|setHTML|parseHTML|\beval\(|new Function|javascript:|\bRenderMime"
)
# Parses a picture for a document that no page has, and takes over what is in a list; what comes of
# anything else there is in `labextension/tests/history.test.ts`.
COPIES = {"picture.ts": ["DOMParser"]}
SOURCES = sorted((ROOT / "labextension" / "src").rglob("*.ts"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_turns_text_into_markup(path) -> None:
    text = path.read_text()
    assert MARKUP.findall(text) == COPIES.get(path.name, [])
    # The only markup are the icons, which JupyterLab makes of constants.
    assert "<svg" not in text or path.name == "icons.ts"
