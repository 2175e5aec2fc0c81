"""What a notebook shows and keeps: the pictures of a profile, and a trace after Stop."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from tests.notebook.kernels import Cell, LiveNotebook


def _html(cell: Cell) -> str:
    [found] = [data["text/html"] for data in cell.data if "flame graph" in _text(data, "text/html")]
    return str(found)


def _text(data: dict[str, object], kind: str) -> str:
    return str(data.get(kind, ""))


def test_stop_shows_what_torch_has_done_and_a_run_is_looked_at(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened()
    notebook.succeed(f"%cd {tmp_path}")
    cell = notebook.start(
        "%%sky --nodes 2 --profile --stdout all\nimport time, torch\na = torch.ones(30, 30)\n"
        "a = a @ a / 30\nprint('on', flush=True)\ntime.sleep(600)"
    )
    notebook.until(cell, lambda cell: cell.stdout.count("│ on") == 2)
    notebook.interrupt()
    assert "KeyboardInterrupt" in notebook.finish(cell).traceback
    [shown] = [each for each in cell.data if "has the trace of all ranks" in str(each)]
    ElementTree.fromstring(shown["text/html"])
    assert "aten::mm" in shown["text/plain"]
    [file] = tmp_path.glob("trace-*.json")
    assert f"{file.name} (" in shown["text/plain"]
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["name"] == "aten::mm"} == {0, 1}
    notebook.succeed("%%sky --background\nwhile True:\n    a = a @ a / 30")
    looked = notebook.succeed("%sky profile 1s")
    ElementTree.fromstring(_html(looked))
    assert "samples came" in looked.data[-1]["text/plain"]
    notebook.succeed("%sky interrupt")
