"""Messages that do not have the shape of what they claim to be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.frames import ProtocolError, decode_message, encode
from jupyter_sky.transport.protocol.error_report import ChainedError, report
from jupyter_sky.transport.protocol.events import (
    Added,
    Display,
    Ending,
    Event,
    Forgotten,
    Formed,
    Leaving,
    Lost,
    Metrics,
    Output,
    Prepared,
    Prompted,
    Queued,
    RankDone,
    RankExited,
    RankStarted,
    RunBegan,
    Saved,
    Told,
    decode_event,
)
from jupyter_sky.transport.protocol.inspection import RankUsage
from jupyter_sky.transport.protocol.shape import LARGEST, Size, Time, check_for

VALUE: Packed = {
    "stream": b"x",
    "buffers": [{"blob": "ab", "size": 5}, b""],
    "tokens": {"first": 7, "known": {1: 2}},
    "cells": {"<cell>": ("x = 1", "In[1]")},
}
CHAINED: ChainedError = {
    "type": "ValueError",
    "text": "no",
    "notes": ["x"],
    "place": "cell [7]",
    "line": 2,
}
EVENTS = [
    Prepared({"python": "3.12"}, {}),
    RankStarted(0, 5),
    RankExited(0, 5, "killed", None, ""),
    Formed(1, 2, None),
    Formed(1, 2, report(ValueError, "no")),
    Output(0, None, "stdout", b"x"),
    Output(0, "r", "stdout", b"x", call=3),
    Display(0, "r", "display", {"text/plain": "x", "image/png": b"x"}, {}, {"display_id": "y"}),
    Saved(0, "r", "/shared/run", 300.0),
    Saved(0, "r", "/shared/run", None),
    Saved(0, "r", "/data/run", None, uploaded=False),
    RunBegan("r", [(0, 1)], "title", [(0, 0)], {0: ["x"]}, attempts_left=3),
    Metrics(0, "r", {"loss": b"x" * 16}, {"loss": 1}, of=3),
    Prompted(0, "r", "debugger", 1, "", "stopped", "cell [7], line 12"),
    Told(0, "r", "value", 3, VALUE),
    Told(0, "r", "error", 4, None, report(ValueError, "no")),
    Told(0, "r", "lost", 5, reason="it exited with 7"),
    RankDone(0, "r", "ok", None, VALUE, False, {"x": True}, ["s"]),
    RankDone(0, "r", "error", report(ValueError, "no")),
    RankDone(0, "r", "error", {**report(ValueError, "no"), "chain": [CHAINED]}),
    Leaving("stop", None, [0]),
    Leaving("stop", 5, [0]),
    Ending("idle"),
    Added("ab12"),
    Queued(["ab12"]),
    Forgotten(["ab"]),
    Lost(3, 1),
]


def wire(message: Any) -> Any:
    return decode_message(encode(message)[12:])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_arrive_as_they_were(event: Event) -> None:
    said = wire(event.message())
    assert wire(decode_event(said).message()) == said


def test_each_event_is_tried() -> None:
    assert {type(event) for event in EVENTS} == set(Event.kinds.values())


def test_what_is_new_in_it_is_left_out() -> None:
    assert decode_event({**Ending("idle").message(), "new": [1]}) == Ending("idle")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.floats() | st.text("ab") | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(EVENTS), st.randoms(), ANYTHING)
def test_a_field_of_another_type_is_refused(event: Event, random: Any, value: Any) -> None:
    message = wire(event.message())
    name = random.choice(sorted(message))
    try:
        made = decode_event({**message, name: value})
    except ProtocolError:
        return
    # It may be of the right type by chance; then it can go over the wire again.
    assert decode_event(wire(made.message()))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_field_that_lacks_is_named_or_has_its_usual_value(event: Event) -> None:
    message = event.message()
    for name in message:
        rest = {key: value for key, value in message.items() if key != name}
        try:
            assert isinstance(decode_event(rest), type(event))
        except ProtocolError as error:
            assert "lacks a field" in str(error) or "unknown event" in str(error)


def test_what_a_rank_uses() -> None:
    fits = check_for(list[RankUsage])
    usage = {"rank": 0, "line": "", "utilisation": 0.5, "memory": [1, 2]}
    assert fits(
        [usage, {**usage, "utilisation": None, "memory": None}, {**usage, "utilisation": 1}]
    )
    for wrong in (
        {"rank": "0"},
        {"line": b""},
        {"utilisation": "1"},
        {"memory": [1, "2"]},
        {"memory": [1]},
    ):
        assert not fits([usage, {**usage, **wrong}])
    assert not fits([{"rank": 0}])
    assert not fits({"rank": 0})


def test_a_number_is_in_its_range() -> None:
    fits = check_for(list[Size | None])
    assert fits([0, None, LARGEST])
    for wrong in (-1, LARGEST + 1, 1.0, "1"):
        assert not fits([0, wrong])
    is_time = check_for(Time)
    assert is_time(0) and is_time(1.5)
    for wrong in (-0.1, 1e308, float("nan"), float("inf"), None):
        assert not is_time(wrong)
