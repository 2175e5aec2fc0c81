"""Objects that are found again by their tokens, and who keeps them alive."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

import pytest

from jupyter_sky.serialization.object_tokens.received import ObjectGone, ReceivedObjects
from jupyter_sky.serialization.object_tokens.sent import SentObjects
from jupyter_sky.serialization.object_tokens.tokens import Tokens


@pytest.mark.parametrize("make", [object, list, dict, set], ids=lambda make: make.__name__)
def test_a_rank_finds_what_others_hold_and_keeps_nothing_else(make: Any) -> None:
    received = ReceivedObjects()
    held = make()
    received.record(Tokens(5), {0: held, 1: make()})
    received.drop_unused()
    assert received.find(5) is held
    with pytest.raises(ObjectGone):
        received.find(6)


@pytest.mark.parametrize("make", [object, list, dict, set], ids=lambda make: make.__name__)
def test_the_notebook_knows_what_it_has_sent(make: Any) -> None:
    sent = SentObjects()
    first, other = make(), make()
    shared = {id(first): (0, first)}
    sent.record_sent([1], shared, sent.assign_tokens(shared, {}))
    asked = {**shared, id(other): (1, other)}
    assert sent.known_to(1, asked).keys() == {id(first)}
    assert sent.known_to(0, asked) == {}


def test_of_two_notebooks_on_a_cluster_each_finds_its_own_objects() -> None:
    received, notebooks, objects = ReceivedObjects(), (SentObjects(), SentObjects()), ([1], [2])
    tokens = []
    for notebook, each in zip(notebooks, objects, strict=True):
        shared = {id(each): (3, each)}
        given = notebook.assign_tokens(shared, {})
        notebook.record_sent([0], shared, given)
        received.record(given, {3: each})
        tokens.append(given.of(3))
    assert [received.find(token) for token in tokens] == [[1], [2]]


def in_a_circle() -> Any:
    """Return a list and a variable of a closure that keep each other alive."""
    box: list[Any] = []

    def function() -> Any:
        return box

    box.append(function)
    return box, *function.__closure__


def test_what_cannot_be_referred_to_weakly_is_found_by_its_place(monkeypatch: Any) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    box, cell = in_a_circle()
    main.box, alive = box, weakref.ref(box[0])

    received, sent = ReceivedObjects(), SentObjects()
    received.record(Tokens(5), {0: box, 1: cell})
    received.settle({"box": box})
    assert received.find(5) is box and received.find(6) is cell
    shared, main_names = {id(box): (0, box), id(cell): (1, cell)}, {"box": box}
    sent.record_sent([1], shared, sent.assign_tokens(shared, main_names))
    assert sent.known_to(1, shared).keys() == shared.keys()

    main.box = [*box]
    with pytest.raises(ObjectGone):
        received.find(5)
    received.former.clear()
    del main.box, box, cell, shared, main_names
    gc.collect()
    assert alive() is None


def test_what_moves_while_values_are_received_is_found_by_its_new_place(monkeypatch: Any) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.box, main.dropped = [object(), print], [object(), print]
    received = ReceivedObjects()
    received.record(Tokens(5), {0: main.box, 1: main.dropped})
    received.settle({"box": main.box, "dropped": main.dropped})
    received.pin()
    main.moved = main.box
    del main.box, main.dropped
    received.unpin(vars(main))
    assert received.find(5) is main.moved
    with pytest.raises(ObjectGone):
        received.find(6)


def test_what_is_given_again_has_the_token_that_it_had_and_is_let_go_of() -> None:
    received, config = ReceivedObjects(), {"step": 0}
    for token in (7, 8):  # another one in each run
        received.give({}, {token: config})
    assert received.get(7) is config
    assert received.get(8) is None
    del config
    received.drop_unused()
    assert received.get(7) is None


def test_what_comes_back_may_be_dropped_before_it_has_a_place(monkeypatch: Any) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.kept = [print]
    sent = SentObjects()
    sent.record_returned({token: [print] for token in range(5000)}, are_named=True)
    # What another rank returns comes back too, before the values are bound to names.
    sent.record_returned({5000: main.kept}, are_named=True)
    sent.settle(vars(main))
    assert sent.token_of(main.kept) == 5000
