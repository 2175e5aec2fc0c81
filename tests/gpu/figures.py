"""What a run of the suite has shown: its table, and the file that keeps the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass
class Check:
    """A check: what it shows, how it came out, and what it measured."""

    what: str
    outcome: str = "not run"
    figures: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a figure, or another fact worth keeping."""
        self.figures.append(" ".join(text.split()))


def table(checks: Sequence[Check]) -> str:
    """Return a row for each check, in Markdown that a terminal shows well too."""
    rows = [["check", "result", "measured"]]
    rows += [[each.what, each.outcome, "; ".join(each.figures)] for each in checks]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rows.insert(1, ["-" * width for width in widths])
    lines = (" | ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(f"| {line} |" for line in lines)


def write(machine: str, date: str, commit: str, seconds: float, checks: Sequence[Check]) -> None:
    """Keep what was shown in `RESULTS`."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for each in checks:
        kind = each.outcome.partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    RESULTS.write_text(
        "# The last run of `make test-gpu`\n\n"
        f"- machine: {machine}\n- date: {date}\n- commit: {commit}\n"
        f"- {summary}, in {seconds:.0f} s\n\n{table(checks)}\n"
    )
