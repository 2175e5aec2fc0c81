"""Objects that are found again by their tokens, and who keeps them alive."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_sky.serialization.object_tokens import ObjectGone, ReceivedObjects, SentObjects, Tokens


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
    sent.record_sent([1], shared, sent.assign_tokens(shared))
    asked = {**shared, id(other): (1, other)}
    assert sent.known_to(1, asked).keys() == {id(first)}
    assert sent.known_to(0, asked) == {}
