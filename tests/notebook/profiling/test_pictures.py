"""Pictures of profiles: whole, without anything of a page's in names, and of bounded size."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from jupyter_sky.cluster.profiling.profile import Frame, Profile, RankSamples, Stack
from jupyter_sky.notebook.profiling.flame import as_html
from jupyter_sky.notebook.profiling.text import as_text

_HOT = Frame("cell [3]", 4, "train", "loss.backward()", True)
_TOP = Frame("cell [3]", 9, "", "train()", True)


def _profile(*ranks: RankSamples) -> Profile:
    return Profile(10.0, ranks, {}, False)


def _rank(rank: int, **counts: int) -> RankSamples:
    stacks = tuple(Stack(count, each, "", (_TOP, _HOT)) for each, count in counts.items())
    return RankSamples(rank, sum(counts.values()), sum(counts.values()), 0, stacks)


def test_it_shows_ranks_beside_each_other_and_the_hot_call() -> None:
    profile = _profile(
        _rank(0, compute=10, communication=90),
        _rank(1, compute=12, communication=88),
        _rank(2, data=80, compute=20),
    )
    html = as_html(profile, "train")
    root = ElementTree.fromstring(html)
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "ranks 0-1: 89 % communication" in titles
    assert "rank 2: 80 % data loading" in titles
    assert any(
        each and each.startswith("cell [3], line 4 in train: loss.backward() · 100 % of the time")
        for each in titles
    )
    assert profile.sentence == (
        "ranks 0-1 spend 89 % of the time in communication, where they wait for rank 2: "
        "80 % data loading"
    )
    assert as_text(profile, "train").splitlines()[:6] == [
        "train: ranks 0-2, 10.0 s.",
        f"{profile.sentence}.",
        "              compute  communication  data loading",
        "   ranks 0-1  11 %     89 %           0 %",
        "   rank 2     20 %     0 %            80 %",
        "the hottest lines:",
    ]
    assert "   100 %  cell [3], line 4 in train: loss.backward()" in as_text(profile, "train")


def test_lines_of_other_threads_are_apart() -> None:
    def at(line: int, thread: str) -> Stack:
        return Stack(80, "beside", thread, (Frame("cell [3]", line, "load", f"line {line}", True),))

    beside = (at(2, "a"), at(2, "b"), at(5, "a"))
    profile = _profile(RankSamples(0, 100, 100, 0, (*_rank(0, waiting=100).stacks, *beside)))
    assert as_text(profile, "train").splitlines()[-6:-1] == [
        "the hottest lines:",
        "   100 %  cell [3], line 4 in train: loss.backward()",
        "the hottest lines of other threads:",
        "    80 %  cell [3], line 2 in load: line 2",
        "    80 %  cell [3], line 5 in load: line 5",
    ]
    root = ElementTree.fromstring(as_html(profile, "train"))
    tables = {each[0].text: list(each[1].itertext()) for each in root.iter("details")}
    assert list(tables) == ["The hottest lines", "The hottest lines of other threads"]
    assert "line 5" in tables["The hottest lines of other threads"]


def test_names_are_text_and_nothing_else() -> None:
    name = "<script>alert(1)</script>\x00\x1b[31m\ud800\u202e\"'&"
    evil = Frame(name, 1, name, name, True)
    profile = _profile(RankSamples(0, 10, 10, 0, (Stack(10, "compute", name, (evil, evil)),)))
    html = as_html(profile, name)
    root = ElementTree.fromstring(html)
    assert not list(root.iter("script"))
    assert "&lt;script&gt;alert(1)" in html
    html.encode()


def test_its_size_is_bounded() -> None:
    def deep(rank: int, at: int) -> Stack:
        frames = tuple(
            Frame(f"file{at}.py", line, f"function_{rank}_{at}_{line}" * 5, "x" * 120, True)
            for line in range(60)
        )
        return Stack(1 + at, "compute" if rank % 2 else "waiting", "", frames)

    ranks = [
        RankSamples(rank, 3000 + 60 * rank, 2000, 0, tuple(deep(rank, at) for at in range(60)))
        for rank in range(64)
    ]
    html = as_html(_profile(*ranks), "train")
    assert len(html) < 600_000
    ElementTree.fromstring(html)


def test_nothing_found_is_said() -> None:
    profile = Profile(1.0, (), {3: "node 1 does not answer"}, False)
    assert "no rank could be looked at" in as_text(profile, "train")
    assert "rank 3: node 1 does not answer" in as_text(profile, "train")
    ElementTree.fromstring(as_html(profile, "train"))
