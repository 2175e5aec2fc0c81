"""The recording of torch's profiler as a timeline of ranks, and a table of operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jupyter_sky.cluster.profiling.profile import percent
from jupyter_sky.cluster.profiling.trace import PARTS, OperationRow, Trace, missing_text
from jupyter_sky.formatting import aligned, format_elapsed, format_ranks, shortened
from jupyter_sky.notebook.profiling.drawing import COLOURS, ROW, box, clean, picture, words

_LABELS = 0.12  # fraction of the width for the names of ranks beside their rows
_MOST_RANKS = 32
_FAINTEST = 8  # least percentage of a time slot to draw
_WIDEST = 60  # most characters of an operation's name


def as_html(found: Trace, title: str, said: str) -> str:
    """Return a trace as HTML; ``said`` says where its file is."""
    notes = [said, *([found.cut] if found.cut else []), *missing_text(found.missing)]
    parts = [
        '<div style="margin: 4px 0; max-width: 1200px; line-height: 1.4">',
        f"<div><b>{clean(_heading(found, title))}</b></div>",
        f"<div>{clean(found.sentence)}</div>",
        _timeline(found),
        _table(found),
        *(f'<div style="opacity: 0.75">{clean(note)}</div>' for note in notes),
        "</div>",
    ]
    return "".join(parts)


def as_text(found: Trace, title: str, said: str) -> str:
    """Return a trace as lines."""
    return "\n".join(_lines(found, title, said))


def _lines(found: Trace, title: str, said: str) -> Iterator[str]:
    yield f"{_heading(found, title)}."
    yield f"{found.sentence}."
    rows = [["", *found.words.values()]]
    for group in found.groups[:_MOST_RANKS]:
        shares = (percent(group.shares[each]) for each in found.words)
        rows.append([format_ranks(group.ranks), *shares])
    yield from (f"   {row}" for row in aligned(rows))
    if found.operations():
        yield "the operations that took most time:"
        yield from (f"   {row}" for row in aligned(_rows(found)))
    yield f"{said}."
    if found.cut:
        yield f"{found.cut}."
    yield from missing_text(found.missing)


def _heading(found: Trace, title: str) -> str:
    begin, end = found.span
    seconds = format_elapsed((end - begin) / 1e9)
    return f"{title}: what torch did on {format_ranks(found.records)}, {seconds}"


def _timeline(found: Trace) -> str:
    """Return a row for each rank, on a common clock; torch was idle in white parts."""
    begin, end = found.span
    whole = max(1, end - begin)
    parts: list[str] = []
    y = 0
    for rank, record in list(found.records.items())[:_MOST_RANKS]:
        name = f"rank {rank}"
        parts.append(words(0, y, name))
        count = max(1, len(record["bins"]))
        first = record["start"] - found.ahead[rank] - begin
        width = (record["stopped"] - record["start"]) / count
        for start, stop, at, share in _stretches(record["bins"]):
            x = _LABELS + (1 - _LABELS) * (first + start * width) / whole
            said = (
                f"{name}, {format_elapsed((first + start * width) / 1e9)} to "
                f"{format_elapsed((first + stop * width) / 1e9)}: {percent(share)} "
                f"{found.words[PARTS[at]]}"
            )
            wide = (1 - _LABELS) * (stop - start) * width / whole
            parts.append(box(x, y, wide, COLOURS[PARTS[at]], "", said))
        y += ROW
    if len(found.records) > _MOST_RANKS:
        rest = list(found.records)[_MOST_RANKS:]
        parts.append(words(0, y, f"{format_ranks(rest)} are in the file"))
        y += ROW
    parts.append(words(_LABELS, y, "0 s"))
    parts.append(words(1, y, format_elapsed(whole / 1e9), anchor="end"))
    y += ROW + 4
    for number, part in enumerate(PARTS):
        x = _LABELS + number * 0.2
        parts.append(box(x, y, 0.012, COLOURS[part], "", found.words[part]))
        parts.append(words(x + 0.016, y, found.words[part]))
    parts.append(words(_LABELS + 0.6, y, f"empty: {found.words['outside']}"))
    return picture(parts, y + ROW, "what each rank did at which time")


def _stretches(bins: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int, float]]:
    """Yield stretches of one main activity: first and last slot, activity, percentage."""
    begun, doing, shares = 0, -1, 0
    for number, each in enumerate([*bins, []]):
        now = -1
        if each:
            most = max(range(len(PARTS)), key=lambda at: each[at] if at < len(each) else 0)
            now = most if each[most] >= _FAINTEST else -1
        if now != doing:
            if doing >= 0:
                yield begun, number, doing, shares / 100 / (number - begun)
            begun, doing, shares = number, now, 0
        if now >= 0:
            shares += each[now]


def _rows(found: Trace) -> list[list[str]]:
    ranks = list(found.records)
    slowest = [f"rank {rank}" for rank in ranks] if len(ranks) <= 4 else ["least", "most"]
    rows = [["operation", "calls", "all ranks", *slowest]]
    for row in found.operations():
        name = shortened(row.name, _WIDEST)
        rows.append([name, f"{row.calls:,}", format_elapsed(row.total), *_by_rank(row, ranks)])
    return rows


def _by_rank(row: OperationRow, ranks: Sequence[int]) -> list[str]:
    if len(ranks) <= 4:
        return [format_elapsed(row.seconds.get(rank, 0.0)) for rank in ranks]
    order = sorted(ranks, key=lambda rank: row.seconds.get(rank, 0.0))
    return [
        f"{format_elapsed(row.seconds.get(rank, 0.0))} (rank {rank})"
        for rank in (order[0], order[-1])
    ]


def _table(found: Trace) -> str:
    head, *rows = _rows(found)
    if not rows:
        return ""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return (
        "<details><summary>The operations that took most time</summary>"
        f'<table style="font-variant-numeric: tabular-nums; margin: 4px 0">{"".join(lines)}</table>'
        "</details>"
    )


def _row(tag: str, cells: Sequence[str]) -> str:
    first, *others = cells
    shown = "".join(f'<{tag} style="text-align: right">{clean(each)}</{tag}>' for each in others)
    left = f'<{tag} style="text-align: left">{clean(first)}</{tag}>'
    return f'<tr style="background: none">{left}{shown}</tr>'
