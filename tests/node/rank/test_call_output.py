"""Which call a thread of a rank belongs to, while several run at once."""

from __future__ import annotations

import threading

from jupyter_sky.node.rank import streams


def in_thread() -> int:
    """Return the call that a thread belongs to which this one starts."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(streams.current_call()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_belongs_to_the_call_that_has_started_it() -> None:
    usual = threading.Thread.start
    with streams.several_calls():
        assert in_thread() == 0
        with streams.written_by(3):
            assert (streams.current_call(), in_thread()) == (3, 3)
        assert (streams.current_call(), in_thread()) == (0, 0)
    assert threading.Thread.start is usual


def test_a_call_that_outlives_its_run_is_nobodys() -> None:
    """The next run counts from 1 again."""
    over, found = threading.Event(), list[int]()

    def call() -> None:
        with streams.written_by(1):
            begun.set()
            over.wait()
            found.append(streams.current_call())

    begun = threading.Event()
    with streams.several_calls():
        thread = threading.Thread(target=call)
        thread.start()
        begun.wait()
    with streams.several_calls():
        over.set()
        thread.join()
    assert found == [0]


def test_what_others_have_put_around_threads_stays() -> None:
    usual = threading.Thread.start
    seen: list[str] = []

    def watched(thread: threading.Thread) -> None:
        seen.append(thread.name)
        usual(thread)

    threads = vars(threading)["Thread"]
    threads.start = watched
    try:
        with streams.several_calls():
            threading.Thread(target=len, args=("",), name="within").start()
        assert threading.Thread.start is watched
    finally:
        threads.start = usual
    assert seen == ["within"]
