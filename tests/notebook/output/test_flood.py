"""The end of output that was printed faster than a notebook can show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher

from jupyter_sky.notebook.output.flood import FloodEnd
from jupyter_sky.transport.protocol.events import Output


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_the_end_is_shown_however_lines_end(end: str) -> None:
    publisher = CapturingDisplayPublisher()
    shell: Any = SimpleNamespace(display_pub=publisher)
    flood = FloodEnd(shell)
    event = Output(0, "run", "stdout", b"", skipped_lines=9, skipped_bytes=900)
    flood.add(event, "".join(f"step {number}{end}" for number in range(10_000)))
    flood.show()
    [shown] = publisher.outputs
    assert shown["data"]["text/plain"].splitlines()[-1] == "step 9999"
