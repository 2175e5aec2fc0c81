"""What is said of a run, and what of that arrives."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_sky.transport.frames import PREFIX, decode_message, encode
from jupyter_sky.transport.protocol import messages
from jupyter_sky.transport.protocol.messages import RunRequest
from jupyter_sky.transport.protocol.rank_messages import RunCommand

_NOTHING: dict[str, Any] = {
    "run": "r1",
    "code": None,
    "call": None,
    "script": None,
    "cells": {},
    "place": ["", 0],
    "generation": 1,
    "values": {},
    "watched": [],
    "outdated": {},
    "names": [],
    "show": [],
    "title": "",
    "everyone": [[0, 3]],
    "ranks": [],
    "together": False,
    "serves": None,
    "talks": False,
    "records": [],
    "deadline": 0.0,
    "debugging": {"keyboard": False, "stops": False, "looks_at": None},
    "checkpoint": None,
    "program": None,
    "after_cut_off": False,
    "first": False,
    "client": "",
    "attempts_left": 0,
}


@pytest.mark.parametrize(
    "holds",
    [
        {},
        {"code": ""},
        {"code": "x = 1", "values": {0: []}, "watched": ["x"], "program": []},
        {"code": "x", "after_cut_off": True, "first": True, "attempts_left": 3},
        {"call": {"stream": b"", "buffers": []}, "talks": True, "names": [{}], "ranks": [1]},
        {"script": {}, "records": ["memory"], "checkpoint": "", "outdated": {2: ["y"]}},
        {"serves": {}, "cells": {"a": ["b", "c"]}, "title": "of a cell", "deadline": 5.5},
    ],
)
def test_a_run_is_whole_where_it_arrives_although_little_is_said_of_it(
    holds: dict[str, Any],
) -> None:
    request = {**_NOTHING, **holds}
    assert request.keys() == RunRequest.__annotations__.keys()
    said = messages.compact(request)
    arrived = decode_message(encode(said)[PREFIX.size :])
    assert messages.whole_request(arrived) == request
    assert ("names" in said, "code" in said) == ("names" in holds, "code" in holds)
    of_nodes = ("generation", "values", "first", "client", "attempts_left")
    shared = {name: value for name, value in request.items() if name not in of_nodes}
    asked: dict[str, Any] = {"wanted": [], "asked": ["x"] * len(holds), "of_one": ["x"]}
    command = {**shared, **asked, "op": "run", "gpus": None}
    assert command.keys() == RunCommand.__annotations__.keys()
    arrived = decode_message(encode(messages.compact(command))[PREFIX.size :])
    assert messages.whole_command(arrived) == command


def test_what_is_not_said_is_made_anew_for_each_run() -> None:
    messages.whole_request({})["names"].append("of this run alone")
    assert messages.whole_request({})["names"] == []
