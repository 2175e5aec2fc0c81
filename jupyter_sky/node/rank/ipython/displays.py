"""What IPython displays in a rank: sent by its shell, and not printed."""

from __future__ import annotations

from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

# To mypy, the classes of IPython are `Any`: it is told to skip them.


class RankDisplayHook(DisplayHook):  # type: ignore[misc, unused-ignore]
    """Sends the value of a cell's last expression instead of printing it."""

    exec_result: Any = None  # not a trait; see `RankShell`

    def quiet(self) -> bool:
        return bool(self.semicolon_at_end_of_expression(self.shell.cell))

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self.shell.show("result", {"data": format_dict, "metadata": md_dict or {}})

    def log_output(self, format_dict: dict[str, Any]) -> None:
        pass


class RankDisplayPublisher(DisplayPublisher):  # type: ignore[misc, unused-ignore]
    """Sends the output of ``display``."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: object = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        kind = "update" if update else "display"
        fields = {"data": data, "metadata": metadata or {}, "transient": transient or {}}
        self.shell.show(kind, fields)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.show("clear", {"data": {"wait": wait}})
