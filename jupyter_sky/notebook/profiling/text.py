"""A profile as text: for terminals, and for exports that have no pictures."""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_sky.cluster.profiling.profile import ACTIVITIES, Frame, HotLine, Profile, percent
from jupyter_sky.formatting import aligned, format_elapsed, format_ranks, shortened

_MOST_GROUPS = 16
_LONGEST = 60  # most characters of a list of ranks


def heading(profile: Profile, title: str) -> str:
    """Return the subject of a profile, and its duration."""
    ranks = format_ranks(each.rank for each in profile.ranks) if profile.ranks else "no rank"
    ended = ", until the run ended" if profile.is_cut else ""
    return f"{title}: {ranks}, {format_elapsed(profile.seconds)}{ended}"


def line_of(frame: Frame, has_text: bool = True) -> str:
    """Return a call as `%sky where` shows it."""
    inside = f" in {frame.function}" if frame.function else ""
    text = f": {frame.text}" if frame.text and has_text else ""
    return f"{frame.place}, line {frame.line}{inside}{text}"


def hottest(profile: Profile) -> Iterator[tuple[str, list[HotLine]]]:
    """Yield what to call the lines that take the most time, and these lines."""
    for title, lines in (
        ("the hottest lines", profile.hot_lines()),
        ("the hottest lines of other threads", profile.thread_lines()),
    ):
        if shown := [line for line in lines if line.share >= 0.005]:
            yield title, shown


def as_text(profile: Profile, title: str) -> str:
    """Return a profile as lines."""
    return "\n".join(_lines(profile, title))


def _lines(profile: Profile, title: str) -> Iterator[str]:
    yield f"{heading(profile, title)}."
    yield f"{profile.sentence}."
    groups = profile.groups
    used = [each for each in ACTIVITIES if any(group.shares[each] >= 0.005 for group in groups)]
    if groups:
        rows = [["", *(ACTIVITIES[each] for each in used)]]
        for group in groups[:_MOST_GROUPS]:
            name = shortened(format_ranks(group.ranks), _LONGEST)
            rows.append([name, *(percent(group.shares[each]) for each in used)])
        yield from (f"   {row}" for row in aligned(rows))
        if len(groups) > _MOST_GROUPS:
            rest = [rank for group in groups[_MOST_GROUPS:] for rank in group.ranks]
            yield f"   and {format_ranks(rest)}, each differently"
    for title, lines in hottest(profile):
        yield f"{title}:"
        for line in lines:
            everywhere = len(line.ranks) == len(profile.ranks)
            ranks = "" if everywhere else f" ({format_ranks(line.ranks)})"
            yield f"   {percent(line.share):>5}  {line_of(line.frame)}{ranks}"
    yield f"{profile.came}."
    yield from (f"{each}." for each in profile.without)
