"""A profile of ranks: the shares of their activities, and the lines that took the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jupyter_sky.formatting import format_ranks, keys_by_value
from jupyter_sky.transport.protocol.profiling import RankProfile

ACTIVITIES = {
    "compute": "compute",
    "communication": "communication",
    "data": "data loading",
    "waiting": "waiting",
    "outside": "not in the cell",
    "other": "not seen",
}
"""What a rank did, and the words for it. Those that were not seen did anything."""

_ALIKE = 0.08
"""The part of the time by which ranks differ that are said to do the same."""

_LESS = 0.25
"""The part of the time that a rank communicates less than the others, who then wait for it."""


class Frame(NamedTuple):
    """A call: its place as the user knows it, line, function, text, and whether it is theirs."""

    place: str
    line: int
    function: str
    text: str
    own: bool


@dataclass(frozen=True)
class Stack:
    """A stack that was sampled ``count`` times, the outermost call first; see `SampledStack`."""

    count: int
    activity: str
    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class RankSamples:
    """The samples of a rank; see `RankProfile`."""

    rank: int
    asked: int
    came: int
    stuck: int
    stacks: tuple[Stack, ...]

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each of the `ACTIVITIES` in its time."""
        counts = Counter[str]()
        for stack in self.stacks:
            if stack.activity in ACTIVITIES:
                counts[stack.activity] += stack.count
        total = max(self.asked, counts.total(), 1)
        counts["other"] = total - counts.total()
        return {activity: counts[activity] / total for activity in ACTIVITIES}

    @property
    def is_idle(self) -> bool:
        """Whether it was never seen in the user's code."""
        return all(each.activity == "outside" for each in self.stacks)


@dataclass(frozen=True)
class Alike:
    """Ranks with similar activities, and the mean of their shares."""

    ranks: tuple[int, ...]
    shares: Mapping[str, float]


@dataclass(frozen=True)
class HotLine:
    """A line of the user, its share of all ranks' time, and the ranks that spend it there.

    Where several threads of a rank are at a line, it is the mean of their shares.
    """

    frame: Frame
    share: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """A profile of ranks.

    Attributes
    ----------
    seconds
        The duration of sampling.
    ranks
        The samples of ranks.
    silent
        Why there are no samples of other ranks.
    is_cut
        Whether the run ended before the time was over.
    """

    seconds: float
    ranks: tuple[RankSamples, ...]
    silent: Mapping[int, str]
    is_cut: bool

    @property
    def groups(self) -> tuple[Alike, ...]:
        """Groups of ranks with similar activities."""
        return alike({each.rank: each.shares for each in self.ranks}, ACTIVITIES)

    @property
    def sentence(self) -> str:
        """A sentence about which ranks wait for which, or how all spend their time."""
        return told(self.groups, ACTIVITIES)

    @property
    def without(self) -> list[str]:
        """Phrases about ranks that are not in it."""
        by_reason = keys_by_value(self.silent)
        return [f"{format_ranks(ranks)}: {why}" for why, ranks in by_reason.items()]

    @property
    def came(self) -> str:
        """A sentence about how many samples arrived, and why not all."""
        asked = sum(each.asked for each in self.ranks)
        came = sum(each.came for each in self.ranks)
        text = f"{came:,} of {asked:,} samples came"
        if stuck := [each.rank for each in self.ranks if each.stuck]:
            return (
                f"{text}: on {format_ranks(stuck)} a call into C let no other Python code run; "
                "its stack, which the system wrote, stands for that time"
            )
        if came < 0.9 * asked:
            return f"{text}: calls into C let no other Python code run, or the machine was busy"
        return text

    def hot_lines(self) -> list[HotLine]:
        """Return the user's lines that take the most time, the hottest first."""
        return self._hottest(10, beside=False)

    def thread_lines(self) -> list[HotLine]:
        """Return the lines at which other threads are, beside the one that runs the cell."""
        return self._hottest(5, beside=True)

    def _hottest(self, most: int, beside: bool) -> list[HotLine]:
        counts: dict[Frame, dict[int, Counter[str]]] = {}
        for rank in self.ranks:
            for stack in rank.stacks:
                own = next((frame for frame in reversed(stack.frames) if frame.own), None)
                if own is None or (stack.activity == "beside") != beside:
                    continue
                of_rank = counts.setdefault(own, {}).setdefault(rank.rank, Counter())
                of_rank[stack.thread if beside else ""] += stack.count
        asked = {rank.rank: max(rank.asked, 1) for rank in self.ranks}
        shares = {
            frame: {rank: each.total() / len(each) / asked[rank] for rank, each in of.items()}
            for frame, of in counts.items()
        }
        lines = []
        for frame, of in shares.items():
            highest = max(of.values())
            ranks = tuple(rank for rank, share in of.items() if share >= highest / 2)
            lines.append(HotLine(frame, sum(of.values()) / len(self.ranks), ranks))
        return sorted(lines, key=lambda each: (-each.share, each.frame))[:most]


def samples(found: RankProfile) -> RankSamples:
    """Return the samples of a rank from its message."""
    frames = [
        Frame(each["place"], each["line"], each["function"], each["text"], each["own"])
        for each in found["frames"]
    ]
    stacks = tuple(
        Stack(
            max(0, each["count"]),
            each["activity"],
            each["thread"],
            tuple(frames[at] for at in reversed(each["frames"]) if 0 <= at < len(frames)),
        )
        for each in found["stacks"]
    )
    return RankSamples(found["rank"], found["asked"], found["came"], found["stuck"], stacks)


def percent(share: float) -> str:
    """Format a share of the time: ``"42 %"``."""
    # A difference of two measurements may be slightly negative: "-0 %".
    return f"{100 * max(share, 0):.0f} %"


def alike(
    by_rank: Mapping[int, Mapping[str, float]], activities: Mapping[str, str]
) -> tuple[Alike, ...]:
    """Group ranks that spend their time alike, with the mean of their shares."""
    groups: list[list[int]] = []
    for rank, shares in by_rank.items():
        mine = next((group for group in groups if _are_alike(by_rank[group[0]], shares)), None)
        if mine is None:
            groups.append([rank])
        else:
            mine.append(rank)
    return tuple(
        Alike(
            tuple(group),
            {each: sum(by_rank[rank][each] for rank in group) / len(group) for each in activities},
        )
        for group in groups
    )


def told(groups: Sequence[Alike], activities: Mapping[str, str]) -> str:
    """Return which ranks wait for which, or how all spend their time, in ``activities``' words."""
    if not groups:
        return "no rank could be looked at"
    most = max(groups, key=lambda each: each.shares["communication"])
    slow = min(groups, key=lambda each: each.shares["communication"])
    if slow.shares["communication"] >= most.shares["communication"] - _LESS:
        if len(groups) == 1:
            return f"{format_ranks(groups[0].ranks)}: {_said(groups[0].shares, activities)}"
        return "; ".join(
            f"{format_ranks(each.ranks)}: {_said(each.shares, activities, 1)}"
            for each in groups[:4]
        )
    # The activity that it does more than the ranks that wait for it makes it slow.
    doing = max(activities, key=lambda each: slow.shares[each] - most.shares[each])
    one = len(most.ranks) == 1
    return (
        f"{format_ranks(most.ranks)} {'spends' if one else 'spend'} "
        f"{percent(most.shares['communication'])} of the time in communication, "
        f"where {'it waits' if one else 'they wait'} for {format_ranks(slow.ranks)}: "
        f"{percent(slow.shares[doing])} {activities[doing]}"
    )


def _are_alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return all(abs(one[each] - other[each]) <= _ALIKE for each in one)


def _said(shares: Mapping[str, float], activities: Mapping[str, str], most: int = 3) -> str:
    largest = sorted(activities, key=lambda each: -shares[each])
    said: Iterable[str] = (
        f"{percent(shares[each])} {activities[each]}" for each in largest if shares[each] >= 0.01
    )
    return ", ".join(list(said)[:most])
