"""The picture of a profile: what each rank spends its time on, and a flame graph.

The flame graph has the outermost call on top. Ranks that do the same share a flame; the width of a
box is the fraction of the ranks' time that was spent in its call, including the calls below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.profiling.profile import (
    ACTIVITIES,
    Alike,
    Frame,
    HotLine,
    Profile,
    RankSamples,
    percent,
)
from jupyter_sky.formatting import format_ranks, shortened
from jupyter_sky.notebook.profiling.drawing import COLOURS, ROW, box, clean, picture, words
from jupyter_sky.notebook.profiling.text import heading, hottest, line_of

_LABELS = 0.2  # fraction of the width for the names of ranks beside bars
_MOST_GROUPS = 16
_MOST_ROWS = 36  # of a flame graph
_MOST_BOXES = 500
_NARROWEST = 0.004  # of the width
_GAP = 4  # pixels between the names of ranks and their flames


@dataclass
class _Node:
    """A call in a flame graph: its share of the time, by activity, and the calls that it made."""

    frame: Frame | None = None
    shares: dict[str, float] = field(default_factory=dict)
    calls: dict[tuple[object, ...], _Node] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Its share of the time."""
        return sum(self.shares.values())

    @property
    def colour(self) -> str:
        """The colour of its main activity."""
        return COLOURS.get(max(self.shares, key=self.shares.__getitem__), COLOURS["other"])

    def add(self, activity: str, share: float) -> None:
        """Add a share of the time."""
        self.shares[activity] = self.shares.get(activity, 0.0) + share


def as_html(profile: Profile, title: str) -> str:
    """Return a profile as HTML; ``title`` names its subject."""
    groups = profile.groups
    parts = [
        '<div style="margin: 4px 0; max-width: 1200px; line-height: 1.4">',
        f"<div><b>{clean(heading(profile, title))}</b></div>",
        f"<div>{clean(profile.sentence)}</div>",
        _bars(groups),
        _flames(profile, groups),
        *(_lines(*each) for each in hottest(profile)),
        f'<div style="opacity: 0.75">{clean(_small_print(profile))}</div>',
        "</div>",
    ]
    return "".join(parts)


def _bars(groups: Sequence[Alike]) -> str:
    """Return a bar for each group of ranks that do the same, and a legend."""
    parts: list[str] = []
    y = 0
    used = [each for each in ACTIVITIES if any(group.shares[each] >= 0.005 for group in groups)]
    for group in groups[:_MOST_GROUPS]:
        name = format_ranks(group.ranks)
        parts.append(words(0, y, shortened(name, 22), title=name))
        x = _LABELS
        for activity in used:
            width = group.shares[activity] * (1 - _LABELS)
            said = f"{percent(group.shares[activity])} {ACTIVITIES[activity]}"
            if width > 0:
                label = percent(group.shares[activity])
                parts.append(box(x, y, width, COLOURS[activity], label, f"{name}: {said}"))
            x += width
        y += ROW
    if len(groups) > _MOST_GROUPS:
        rest = [rank for group in groups[_MOST_GROUPS:] for rank in group.ranks]
        parts.append(words(0, y, f"and {format_ranks(rest)}, each differently"))
        y += ROW
    y += _GAP
    for at, activity in enumerate(used):
        x = _LABELS + at * (1 - _LABELS) / len(ACTIVITIES)
        parts.append(box(x, y, 0.012, COLOURS[activity], "", ACTIVITIES[activity]))
        parts.append(words(x + 0.016, y, ACTIVITIES[activity]))
    return picture(parts, y + ROW, "what each rank spends its time on")


def _flames(profile: Profile, groups: Sequence[Alike]) -> str:
    total = max(1, len(profile.ranks))
    by_rank = {each.rank: each for each in profile.ranks}
    parts: list[str] = []
    x = 0.0
    deepest = 0
    for group in groups[:_MOST_GROUPS]:
        width = len(group.ranks) / total
        root = _tree([by_rank[rank] for rank in group.ranks])
        name = format_ranks(group.ranks)
        label = shortened(name, max(4, int(width * 120)))
        parts.append(box(x, 0, max(width - 0.003, 0.001), "#e9e4d8", label, name))
        boxes = list(_boxes(root, x, width - 0.003, 1, name))
        for depth, drawn in boxes[: _MOST_BOXES // min(len(groups), _MOST_GROUPS)]:
            parts.append(drawn)
            deepest = max(deepest, depth)
        x += width
    if not deepest:
        return ""
    return picture(parts, (deepest + 1) * ROW, "flame graph: the calls that the time is spent in")


def _tree(ranks: Sequence[RankSamples]) -> _Node:
    root = _Node()
    for rank in ranks:
        for stack in rank.stacks:
            if stack.activity == "beside" or not stack.frames:
                continue
            share = stack.count / max(rank.asked, 1) / len(ranks)
            node = root
            node.add(stack.activity, share)
            for frame in stack.frames[:_MOST_ROWS]:
                # Line numbers only matter in the user's own code.
                key = (frame.place, frame.function, frame.line if frame.own else 0)
                node = node.calls.setdefault(key, _Node(frame))
                node.add(stack.activity, share)
    return root


def _boxes(node: _Node, x: float, whole: float, depth: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield the boxes of the calls below a node, row by row, with the number of the row."""
    level = [(node, x)]
    while level:
        below = []
        for parent, left in level:
            at = left
            for child in sorted(parent.calls.values(), key=lambda each: -each.share):
                width = child.share * whole
                if width >= _NARROWEST:
                    yield depth, _box(child, at, width, depth, name)
                    below.append((child, at))
                at += width
        level, depth = below, depth + 1


def _box(node: _Node, x: float, width: float, depth: int, name: str) -> str:
    assert node.frame is not None
    frame = node.frame
    spent = ", ".join(
        f"{percent(share)} {ACTIVITIES.get(activity, activity)}"
        for activity, share in sorted(node.shares.items(), key=lambda each: -each[1])[:3]
    )
    title = f"{line_of(frame)} · {percent(node.share)} of the time of {name}: {spent}"
    label = f"{frame.function} · {frame.place}" if frame.function else frame.place
    if frame.own:
        label = f"{label}:{frame.line}"
    return box(x, depth * ROW, max(width - 0.0008, 0.001), node.colour, label, title)


def _lines(title: str, lines: Sequence[HotLine]) -> str:
    rows = []
    for line in lines:
        code = f"<code>{clean(line.frame.text)}</code>" if line.frame.text else ""
        ranks = shortened(format_ranks(line.ranks), 40)
        rows.append(
            '<tr style="background: none">'
            f'<td style="text-align: right">{percent(line.share)}</td>'
            f'<td style="text-align: left">{clean(line_of(line.frame, has_text=False))}</td>'
            f'<td style="text-align: left">{code}</td>'
            f'<td style="text-align: left">{clean(ranks)}</td></tr>'
        )
    return (
        f"<details><summary>{title.capitalize()}</summary>"
        f'<table style="font-variant-numeric: tabular-nums; margin: 4px 0">{"".join(rows)}</table>'
        "</details>"
    )


def _small_print(profile: Profile) -> str:
    return f"{'; '.join([profile.came, *profile.without])}."
