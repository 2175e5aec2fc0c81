"""What uv says of a failure, as one line; and which uv is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.packages.installer import PackageInstaller, what_failed

TREE = """
  × No solution found when resolving dependencies:
  ╰─▶ Because nosuch was not found and you require nosuch, we conclude this.
"""

BUILD = """
Using Python 3.11.7 environment at: /x
error: Failed to build `bad @ file:///x/bad`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta.get_requires` failed (exit status: 1)

         [stderr]
         Traceback (most recent call last):
           File "<string>", line 2, in <module>
         RuntimeError: needs a compiler

hint: Build failures usually indicate a problem with the package
"""

NETWORK = """
error: Request failed after 3 retries in 7.4s
  cause: Failed to fetch: https://index/nosuch/
  cause: Connection refused (os error 111)
"""

FULL = """
error: Failed to install: greeting-1.0-py3-none-any.whl (greeting==1.0)
  cause: Failed to copy to `/agent/packages/1/greeting.py`
  cause: failed to copy file from /c/x to /agent/packages/1/.tmp6: No space left on device (os e
"""

FULL_CACHE = """
error: Failed to download `greeting==1.0`
  cause: I/O operation failed during extraction
  cause: failed to write to file `/cache/a b/greeting.py`: No space left on device (os e
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            TREE,
            "No solution found when resolving dependencies: "
            "Because nosuch was not found and you require nosuch, we conclude this",
        ),
        (BUILD, "Failed to build `bad @ file:///x/bad`: RuntimeError: needs a compiler"),
        (
            NETWORK,
            "Request failed after 3 retries in 7.4s: Connection refused (os error 111)",
        ),
        (
            FULL,
            "Failed to install: greeting-1.0-py3-none-any.whl (greeting==1.0): "
            "the disk of /agent/packages/1 is full",
        ),
        (FULL_CACHE, "Failed to download `greeting==1.0`: the disk of /cache/a b is full"),
        ("error: unexpected argument", "unexpected argument"),
        ("Illegal instruction", "Illegal instruction"),
        ("", ""),
    ],
)
def test_what_uv_says_of_a_failure(said: str, line: str) -> None:
    assert what_failed(said.splitlines()) == line


@pytest.mark.parametrize("whose", ["the user's", "another user's", "everybody's"])
def test_uv_is_run_only_from_where_nobody_else_can_put_one(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    agent, blobs, ours = tmp_path / "agent", tmp_path / "blobs", tmp_path / "cache/jupyter-sky"
    for folder in (agent, blobs, ours / "bin"):
        folder.mkdir(parents=True)
    (blobs / ("a" * 64)).write_text("as sent")
    (ours / "bin/uv").write_text("of before")
    if whose != "the user's":
        ours.chmod(0o777 if whose == "everybody's" else 0o755)
        os.chown(ours, *[0 if whose == "everybody's" else 65534] * 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(ours.parent))
    request: Any = {"uv": {"blob": "a" * 64, "size": 7}}
    found = PackageInstaller(agent, BlobStore(blobs, 100))._program(request)
    assert found is not None
    assert found.read_text() == ("of before" if whose == "the user's" else "as sent")
