"""Python and JavaScript are released together."""

from __future__ import annotations

import json

from packaging.version import Version

from jupyter_sky import __version__
from tests.paths import ROOT


def test_they_have_one_version() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    # npm writes 0.2.0-dev0 where Python writes 0.2.0.dev0.
    assert Version(package["version"]) == Version(__version__)
