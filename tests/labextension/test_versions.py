"""Which versions belong together: of Python and JavaScript, and of JupyterLab and the sidebar."""

from __future__ import annotations

import json
import re
import tomllib

from packaging.version import Version

from jupyter_sky import __version__
from tests.paths import ROOT


def test_python_and_javascript_have_one_version() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    # npm writes 0.2.0-dev0 where Python writes 0.2.0.dev0.
    assert Version(package["version"]) == Version(__version__)


def test_the_oldest_jupyterlab_is_the_same_for_tests_page_and_users() -> None:
    """From 4.3 on, a cell says whether it is running; the sidebar relies on that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    readme = (ROOT / "README.md").read_text()
    tested = " ".join(project["optional-dependencies"]["test"])
    said = re.search(r"need JupyterLab (\S+) or Notebook (\S+), or newer", readme)
    assert said, "users are told"
    assert said.groups() == ("4.3", "7.3")
    assert [f"jupyterlab>={said[1]}" in tested, f"notebook>={said[2]}" in tested] == [True, True]
    dependencies = package["dependencies"]
    assert dependencies["@jupyterlab/cells"] == f"^{said[1]}.0"
    # A page warns in its console of each package that is older than we say here; else the builder
    # says what it has itself.
    shared = package["jupyterlab"]["sharedPackages"]
    assert {name: each["requiredVersion"] for name, each in shared.items()} == dependencies
