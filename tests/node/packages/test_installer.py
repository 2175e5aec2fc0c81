"""What uv says of a failure, as one line."""

from __future__ import annotations

import pytest

from jupyter_sky.node.packages.installer import what_failed

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
