"""Python and JavaScript are released together."""

from __future__ import annotations

import json

from jupyter_sky import __version__
from tests.paths import ROOT


def test_they_have_one_version() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert package["version"] == __version__
