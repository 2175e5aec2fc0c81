"""The table of ``%sky vars``, as text and as HTML that a saved notebook keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from jupyter_sky.cluster.comparison.table import NameRow
from jupyter_sky.formatting import aligned, format_bytes, format_ranks, plain

_HEAD = ("name", "type", "shape", "dtype", "device", "size", "ranks")


class NameTable:
    """A displayable table of the ranks' variables.

    Parameters
    ----------
    rows
        The rows.
    ranks
        All ranks of the cluster.

    Attributes
    ----------
    head, rows
        The column titles, and the rows as text without control characters.
    differ
        For each row, whether ranks differ in it.
    """

    head = _HEAD

    def __init__(self, rows: Sequence[NameRow], ranks: Sequence[int]) -> None:
        names = [row.name for row in rows]
        # Mark names that have several rows, or that some ranks lack.
        self.rows = [
            (
                plain(row.name),
                plain(row.type),
                plain(row.shape),
                plain(row.dtype),
                plain(row.device),
                "" if row.size is None else format_bytes(row.size),
                _ranks(row, ranks, is_split=names.count(row.name) > 1),
            )
            for row in rows
        ]
        self.differ = [
            bool(row.differ) or names.count(row.name) > 1 or not row.is_everywhere for row in rows
        ]

    def __repr__(self) -> str:
        return "\n".join(line.rstrip() for line in aligned([_HEAD, *self.rows]))

    def _repr_html_(self) -> str:
        return "".join(self._html())

    def _html(self) -> Iterator[str]:
        yield '<table style="font-variant-numeric: tabular-nums"><thead><tr>'
        yield from (f'<th style="text-align: left">{title}</th>' for title in _HEAD)
        yield "</tr></thead><tbody>"
        for row, differs in zip(self.rows, self.differ, strict=True):
            yield "<tr>"
            for at, cell in enumerate(row):
                text = escape(cell)
                if at == 0:
                    text = f"<code>{text}</code>"
                elif at == len(row) - 1 and differs:
                    text = f"<b>{text}</b>"
                yield f'<td style="text-align: left">{text}</td>'
            yield "</tr>"
        yield "</tbody></table>"


def _ranks(row: NameRow, ranks: Sequence[int], is_split: bool) -> str:
    if is_split or not row.is_everywhere:
        where = f"{'' if is_split else 'only '}{format_ranks(row.ranks)}"
        return f"{where}: values differ" if row.differ else where
    if len(ranks) == 1:
        return format_ranks(row.ranks)
    if row.differ is None:
        # Too large, or busy: nothing was read.
        return "alike, values not compared"
    return "values differ" if row.differ else "all the same"
