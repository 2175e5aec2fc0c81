"""The end of what ranks print."""

from __future__ import annotations

from jupyter_sky.cluster.runs.output_tail import OutputTail
from jupyter_sky.transport.protocol.events import Display, Output


def printed(data: bytes) -> Output:
    return Output(0, "r1", "stdout", data)


def test_what_is_too_much_is_dropped_from_the_front() -> None:
    tail = OutputTail(6)
    for letter in b"abcd":
        assert not tail.kept.is_cut or letter == ord("d")
        tail.add(printed(bytes([letter]) * 3))
    assert tail.kept == ("cccddd", True)


def test_one_event_may_be_larger_than_the_limit() -> None:
    tail = OutputTail(2)
    tail.add(printed(b"first"))
    tail.add(printed(b"second"))
    assert tail.text == "second"


def test_a_character_may_come_in_two_events() -> None:
    tail = OutputTail(100)
    for byte in "é".encode():
        tail.add(printed(bytes([byte])))
    assert tail.text == "é"


def test_of_what_is_displayed_the_text_is_kept() -> None:
    tail = OutputTail(100)
    tail.add(Display(0, "r1", "display", {"text/plain": "<Figure \udcff>", "text/html": "<b>"}))
    tail.add(Display(0, "r1", "display", {"image/png": b""}))
    assert tail.text == "<Figure ?>\n\n"
