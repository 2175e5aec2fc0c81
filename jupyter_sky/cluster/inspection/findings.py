"""What is wrong, from what each rank is doing: who waits for whom, said in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jupyter_sky.formatting import format_duration, format_list, format_ranks, keys_by_value
from jupyter_sky.transport.protocol.inspection import SeenCollective, SeenFrame, SeenRank

_MOST_LINES = 12  # of a stack
_MOST_GROUPS = 6  # of ranks that do the same; with 64 ranks, each may do something else
_MOST_STACKS = 16

_ROOTED = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv")
"""Operations in which the tensors of ranks may differ."""


@dataclass(frozen=True)
class Findings:
    """Where the ranks of a run are.

    Attributes
    ----------
    sentence, past
        Who waits for whom, and what is wrong; the same for when it is over.
    key
        What stays the same while nothing changes but the seconds.
    seconds
        For how long ranks have waited; 0 if none waits.
    stacks
        Where each rank is, in lines; equal ones once.
    has_failed
        Whether a rank has failed, whose error is not here yet: others no longer wait for long.
    """

    sentence: str
    past: str
    key: str
    seconds: float
    stacks: tuple[str, ...]
    has_failed: bool = False

    @property
    def text(self) -> str:
        """Everything, in lines."""
        return "\n".join([f"{self.sentence}.", *self.stacks])

    @property
    def past_text(self) -> str:
        """The same for when it is over."""
        return "\n".join([f"{self.past}.", *self.stacks])


@dataclass(frozen=True)
class _Waiting:
    """Ranks that wait in the same collective, at the same line."""

    ranks: tuple[int, ...]
    collective: SeenCollective
    place: str
    seconds: float


def findings(
    seen: Iterable[SeenRank],
    ranks: Sequence[int],
    silent: Mapping[int, str],
    has_run: bool = True,
) -> Findings:
    """Return what there is to say of the ranks of a run.

    Parameters
    ----------
    seen
        What each rank is doing, as far as that is known.
    ranks
        The ranks of the run; without one, those that do not answer.
    silent
        The nodes of others, of which nothing is known.
    has_run
        Whether there is a run.
    """
    known = {each["rank"]: each for each in seen if each["rank"] in ranks}
    waiting = _waiting(known)

    def say(tense: _Tense) -> str:
        return _sentence(waiting, known, ranks, silent, tense, has_run)

    now = say(_PRESENT)
    if any(each.get("stopping") for each in known.values()):
        now = f"the run is being stopped: {now}"
    return Findings(
        now,
        say(_PAST),
        say(_TIMELESS),
        max((each.seconds for each in waiting), default=0.0),
        tuple(_stacks(known, silent)),
        any(each.get("failing") for each in known.values()),
    )


@dataclass(frozen=True)
class _Tense:
    """The verbs of a sentence, for one rank and for several."""

    wait: tuple[str, str]
    be: tuple[str, str]
    have: tuple[str, str]
    do: tuple[str, str]
    has_time: bool = True

    def __call__(self, verb: tuple[str, str], ranks: Sequence[int]) -> str:
        return f"{format_ranks(ranks)} {verb[len(ranks) > 1]}"

    def fill(self, what: str, ranks: Sequence[int]) -> str:
        """Return what ranks do with its verbs: ``{is}`` is theirs, ``{it is}`` one thing's."""
        verbs = {"is": self.be, "has": self.have, "does": self.do}
        own = {name: verb[len(ranks) > 1] for name, verb in verbs.items()}
        return what.format_map({**own, **{f"it {name}": verb[0] for name, verb in verbs.items()}})


_PRESENT = _Tense(("waits", "wait"), ("is", "are"), ("has", "have"), ("does", "do"))
_PAST = _Tense(("waited", "waited"), ("was", "were"), ("had", "had"), ("did", "did"))
_TIMELESS = replace(_PRESENT, has_time=False)


def _waiting(known: Mapping[int, SeenRank]) -> list[_Waiting]:
    """Return who waits in what, those whom most wait with first."""
    waits = {
        rank: (each["collectives"][0], _line(each))
        for rank, each in sorted(known.items())
        if each["collectives"] and not each.get("failing")
    }
    # Of one whose call torch has not recorded yet the tensors are not known: they are as others'.
    shapes = {_key(one): one["shapes"] for one, _ in waits.values() if one["shapes"]}
    groups: dict[tuple[tuple[str, int, str], str, str], list[int]] = {}
    for rank, (one, line) in waits.items():
        key = _key(one), one["shapes"] or shapes.get(_key(one), ""), line
        groups.setdefault(key, []).append(rank)
    found = []
    for key, ranks in groups.items():
        seconds = max(waits[rank][0]["seconds"] for rank in ranks)
        found.append(_Waiting(tuple(ranks), waits[ranks[0]][0], key[-1], seconds))
    return sorted(found, key=lambda each: (-len(each.ranks), each.ranks))


def _key(collective: SeenCollective) -> tuple[str, int, str]:
    return collective["group"], collective["number"], collective["operation"]


def _sentence(
    waiting: Sequence[_Waiting],
    known: Mapping[int, SeenRank],
    ranks: Sequence[int],
    silent: Mapping[int, str],
    tense: _Tense,
    has_run: bool,
) -> str:
    parts = []
    nothing = f"nothing {tense.be[0]} running"
    opening = f"no rank {tense.wait[0]} for another" if has_run else nothing
    for each in waiting[:_MOST_GROUPS]:
        seconds = f" for {format_duration(each.seconds)}" if tense.has_time else ""
        where = f" ({each.place})" if each.place else ""
        what = name_of(each.collective)
        parts.append(f"{tense(tense.wait, each.ranks)} in {what}{where}{seconds}")
    if more := sum(len(each.ranks) for each in waiting[_MOST_GROUPS:]):
        parts.append(f"{_more(more)} {tense.wait[more > 1]} in other collectives or lines")
    waits = {rank for each in waiting for rank in each.ranks}
    wanted = {rank for each in waiting for rank in each.collective["ranks"]} or set(ranks)
    runs = {each["run"] for each in known.values() if each["run"]}
    others: dict[str, list[int]] = {}
    for rank in sorted((set(ranks) & wanted) - waits):
        what = ""
        if rank in known:
            what = _doing(known[rank], runs, [each.collective for each in waiting])
        elif rank in silent:
            what = f"{{is}} on {_escaped(silent[rank])}, which {{it does}} not answer"
        others.setdefault(what or "{has} no process now", []).append(rank)
    shown = sorted(others.items(), key=lambda each: -len(each[1]))[:_MOST_GROUPS]
    for what, group in shown:
        parts.append(f"{format_ranks(group)} {tense.fill(what, group)}")
    if more := sum(map(len, others.values())) - sum(len(group) for _, group in shown):
        parts.append(f"{_more(more)} {tense.be[more > 1]} elsewhere")
    if not waiting and not others:
        return nothing
    parts += _wrong(waiting, known)
    return "; ".join(parts) if waiting else f"{opening}: {'; '.join(parts)}"


def _wrong(waiting: Sequence[_Waiting], known: Mapping[int, SeenRank]) -> Iterator[str]:
    """Say what cannot go well: other operations or shapes at the same number."""
    told: set[tuple[str, int]] = set()
    for each in waiting:
        group, number = each.collective["group"], each.collective["number"]
        if not number or (group, number) in told or len(told) == _MOST_GROUPS:
            continue
        told.add((group, number))
        # Also those who are through with it: gloo lets some go on where the others cannot.
        begun = {
            rank: one
            for rank, seen in sorted(known.items())
            for one in [*seen["recent"], *seen["collectives"]]
            if (one["group"], one["number"]) == (group, number)
        }
        operations = {one["operation"] for one in begun.values()}
        if len(operations) > 1:
            parts = _by({rank: one["operation"] for rank, one in begun.items()})
            yield f"these do not belong together: #{number} is {format_list(parts)}"
        elif not next(iter(operations)).startswith(_ROOTED):
            shapes = {rank: one["shapes"] for rank, one in begun.items() if one["shapes"]}
            if len(set(shapes.values())) > 1:
                yield f"the tensors of #{number} differ: {format_list(_by(shapes))}"


def _by(said: Mapping[int, str]) -> list[str]:
    shown = [f"{what} on {format_ranks(each)}" for what, each in keys_by_value(said).items()]
    left = len(shown) - _MOST_GROUPS
    return shown if left <= 0 else [*shown[:_MOST_GROUPS], f"{left} others"]


def _more(count: int) -> str:
    return f"{count} more ranks" if count > 1 else "one more rank"


def name_of(collective: SeenCollective) -> str:
    number = f" #{collective['number']}" if collective["number"] else ""
    return f"{collective['operation']}{number}"


def _doing(seen: SeenRank, runs: Collection[str], wanted: Sequence[SeenCollective]) -> str:
    """Say what a rank does that is in no collective; the verbs are filled in later."""
    if seen["answered"] == "nobody":
        why = "the process {it is} stopped, or the machine {it has} no time for it"
        return f"{{does}} not answer: {why}"
    if seen["run"] is None:
        if seen["ended"] not in runs:
            return "{is} not part of this run"
        # Of one that has not answered itself the collectives are not known.
        came = seen["answered"] == "system" or any(is_begun(one, seen) for one in wanted)
        return "{has} finished" if came or not wanted else "{has} finished without it"
    stack = seen["frames"]
    if seen.get("prompt"):
        asked = "the debugger's prompt" if seen["prompt"] == "debugger" else "a prompt for you"
        place = f" ({_escaped(_line(seen))})" if _line(seen) else ""
        return f"{{is}} at {asked}{place}"
    if seen.get("failing"):
        return "{has} failed"
    own = next((at for at, frame in enumerate(stack) if frame["own"]), None)
    if own is None:
        return "{is} in no line of your code"
    frame = stack[own]
    place = _escaped(f"{frame['place']}, line {frame['line']}")
    if own:
        what = f"{{is}} in {_escaped(stack[own - 1]['function'])} ({place})"
    elif frame["text"]:
        what = f"{{is}} at `{_escaped(frame['text'])}` ({place})"
    elif frame["function"]:
        what = f"{{is}} in {_escaped(frame['function'])} ({place})"
    else:
        what = f"{{is}} at {place}"
    if seen["answered"] == "system":
        what += ", inside a call into C that lets no other Python code run"
    if own and seen["children"]:
        one = len(seen["children"]) == 1
        ended = "a process that it started has" if one else "processes that it started have"
        what += f", and {ended} ended ({', '.join(map(str, seen['children']))})"
    return what


def is_begun(collective: SeenCollective, seen: SeenRank) -> bool:
    """Return whether a rank has come to a collective, as far as is known."""
    group, number = collective["group"], collective["number"]
    return not number or any(
        each["group"] == group and each["number"] >= number for each in seen["recent"]
    )


def _line(seen: SeenRank) -> str:
    frame = next((frame for frame in seen["frames"] if frame["own"]), None)
    return f"{frame['place']}, line {frame['line']}" if frame else ""


def _stacks(known: Mapping[int, SeenRank], silent: Mapping[int, str]) -> Iterator[str]:
    """Yield where each rank is, in lines; equal ones once."""
    alike = keys_by_value({rank: tuple(_lines(each)) for rank, each in sorted(known.items())})
    stacks = [(lines, ranks) for lines, ranks in alike.items() if lines]
    for lines, ranks in stacks[:_MOST_STACKS]:
        yield f"   {format_ranks(ranks)}"
        yield from (f"      {line}" for line in lines)
    if more := [rank for _, ranks in stacks[_MOST_STACKS:] for rank in ranks]:
        yield f"   {_more(len(more))} elsewhere: {format_ranks(more)}"


def _lines(seen: SeenRank) -> Iterator[str]:
    for each in seen["collectives"][:3]:
        shapes = f", {each['shapes']}" if each["shapes"] else ""
        yield f"{name_of(each)}{shapes}, of {format_ranks(each['ranks'])}"
    own = next((at for at, frame in enumerate(seen["frames"]) if frame["own"]), 0)
    frames = seen["frames"][max(0, own - 1) :]
    shown = [frame for at, frame in enumerate(frames) if frame["own"] or not at]
    for frame in shown[:_MOST_LINES]:
        yield _frame(frame)
    if len(shown) > _MOST_LINES:
        yield f"… {len(shown) - _MOST_LINES} more"


def _frame(frame: SeenFrame) -> str:
    inside = f" in {frame['function']}" if frame["function"] else ""
    text = f": {frame['text']}" if frame["text"] else ""
    return f"{frame['place']}, line {frame['line']}{inside}{text}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
