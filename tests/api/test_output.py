"""Who prints, seen from outside: a process with pipes for its output, its errors and its log."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from typing import NamedTuple

import pytest

import jupyter_sky as sky
from tests.api.conftest import topology

PRELUDE = """
import asyncio, ctypes, os, subprocess, sys, threading
import jupyter_sky as sky

def say(text):
    print(text)
    print(text, file=sys.stderr)

def say_every_way(text):
    print(text, "python")
    ctypes.CDLL(None).puts(f"{text} c".encode())
    subprocess.run(["echo", text, "program"])
    os.write(1, f"{text} system\\n".encode())
"""


class Said(NamedTuple):
    stdout: list[str]
    stderr: list[str]
    log: list[str]


def run(script: str, rank: int = 1, world_size: int = 2, log: bool = True) -> Said:
    """Run a script as a rank."""
    with tempfile.TemporaryFile() as file:
        environment = {**os.environ, "COMPUTE_POOL": topology(rank, world_size)}
        if log:
            environment["JUPYTER_SKY_LOG_FD"] = str(file.fileno())
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env=environment,
            pass_fds=[file.fileno()],
            capture_output=True,
            text=True,
        )
        file.seek(0)
        logged = file.read().decode()
    assert done.returncode == 0, done.stderr
    return Said(done.stdout.splitlines(), done.stderr.splitlines(), logged.splitlines())


# -- who -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "speakers"),
    [
        ('"head"', {0}),
        ("lambda info: info.node < 2", {0, 1}),
        ("lambda info: False", set()),
    ],
)
def test_only_those_who_may_print(only: str, speakers: set[int]) -> None:
    script = f"sky.stdout(only={only})(say)('hello')"
    for rank in range(3):
        said = run(script, rank, 3)
        assert said.stdout == (["hello"] if rank in speakers else [])
        assert said.log == ([] if rank in speakers else ["hello"])
        assert said.stderr == ["hello"]


def test_stderr_is_the_other_one() -> None:
    assert run("sky.stderr(only='head')(say)('hello')") == (["hello"], [], ["hello"])


def test_silent_silences_both_on_the_head_too() -> None:
    assert run("sky.silent(say)('hello')", rank=0) == ([], [], ["hello", "hello"])


def test_both_decorators_nest() -> None:
    script = """
    @sky.stdout(only="head")
    @sky.stderr(only="head")
    def quiet():
        say("hidden")
    quiet()
    say("shown")
    """
    assert run(script) == (["shown"], ["shown"], ["hidden", "hidden"])


def test_outside_a_cluster_everybody_prints(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COMPUTE_POOL", raising=False)
    monkeypatch.delenv("JUPYTER_SKY_LOG_FD", raising=False)
    sky.stdout(only="head")(print)("hello")
    sky.silent(print)("hello")
    assert capfd.readouterr().out == "hello\nhello\n"


def test_without_a_log_nothing_is_lost() -> None:
    assert run("sky.silent(say)('hello')", log=False) == (["hello"], ["hello"], [])


def test_a_descriptor_that_is_not_open_is_no_log() -> None:
    script = """
    os.environ["JUPYTER_SKY_LOG_FD"] = "1000"
    sky.silent(say)('hello')
    """
    assert run(script) == (["hello"], ["hello"], [])


# -- what ------------------------------------------------------------------------------------------


def test_c_code_and_programs_are_silenced_too() -> None:
    said = run("""
    say_every_way("before")
    sky.stdout(only="head")(say_every_way)("during")
    say_every_way("after")
    """)
    ways = ["python", "c", "program", "system"]
    assert sorted(said.stdout) == sorted(
        f"{when} {way}" for when in ("before", "after") for way in ways
    )
    assert sorted(said.log) == sorted(f"during {way}" for way in ways)
    assert max(map(said.stdout.index, [f"before {way}" for way in ways])) < min(
        map(said.stdout.index, [f"after {way}" for way in ways])
    )


def test_an_error_passes_and_the_output_is_back() -> None:
    script = """
    @sky.silent
    def fails():
        say("hidden")
        raise KeyError("why")
    try:
        fails()
    except KeyError:
        say("shown")
    """
    assert run(script) == (["shown"], ["shown"], ["hidden", "hidden"])


def test_a_silenced_function_calls_itself() -> None:
    script = """
    @sky.stdout(only="head")
    def count(n):
        print(n)
        if n:
            count(n - 1)
        print(n)
    count(2)
    print("shown")
    """
    said = run(script)
    assert said.stdout == ["shown"]
    assert said.log == ["2", "1", "0", "0", "1", "2"]


def test_stop_may_come_at_any_point() -> None:
    script = """
    import random, signal
    from jupyter_sky.node.rank.interrupts import Interrupts

    def call():
        # Here, since a Stop that comes before the call has begun stops nothing.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.001))
        while True:
            quiet()

    interrupts = Interrupts()
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    quiet = sky.stdout(only="head")(lambda: None)
    for _ in range(200):
        try:
            interrupts.run_interruptible(call)
        except KeyboardInterrupt:
            print("shown")
    """
    assert run(script).stdout == ["shown"] * 200


def test_nothing_is_left_open() -> None:
    script = """
    before = os.listdir("/proc/self/fd")
    for _ in range(100):
        sky.silent(say)("hidden")
    print(os.listdir("/proc/self/fd") == before)
    """
    assert run(script).stdout == ["True"]


# -- functions that pause --------------------------------------------------------------------------


def test_a_generator_is_silenced_at_each_of_its_steps() -> None:
    said = run("""
    @sky.stdout(only="head")
    def steps():
        print("begin")
        got = yield 1
        print("got", got)
        try:
            yield 2
        except KeyError:
            print("caught")
        try:
            yield 3
        finally:
            print("closed")

    each = steps()
    print(next(each))
    print(each.send("x"))
    print(each.throw(KeyError("k")))
    each.close()
    print(list(sky.stdout(only="head")(lambda: iter("ab"))()))

    @sky.stdout(only="head")
    def returns():
        yield
        print("returning")
        return "result"

    def delegates():
        print((yield from returns()))
    list(delegates())
    """)
    assert said.stdout == ["1", "2", "3", "['a', 'b']", "result"]
    assert said.log == ["begin", "got x", "caught", "closed", "returning"]


def test_a_coroutine_is_silenced_only_while_it_runs() -> None:
    said = run("""
    turn = None

    @sky.stdout(only="head")
    async def hidden(name):
        print(name, "begins")
        await asyncio.sleep(0)
        print(name, "goes on")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print(name, "is cancelled")
        return name

    async def shown():
        tasks = [asyncio.ensure_future(hidden(name)) for name in "ab"]
        for _ in range(3):
            print("shown")
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        print(*await asyncio.gather(*tasks))

    asyncio.run(shown())
    """)
    assert said.stdout == ["shown", "shown", "shown", "a b"]
    assert sorted(said.log) == [
        f"{name} {what}" for name in "ab" for what in ("begins", "goes on", "is cancelled")
    ]


def test_an_async_generator_is_silenced_at_each_of_its_steps() -> None:
    said = run("""
    @sky.stdout(only="head")
    async def steps():
        print("begin")
        await asyncio.sleep(0)
        got = yield 1
        print("got", got)
        try:
            yield 2
        except KeyError:
            print("caught")
        try:
            yield 3
        finally:
            print("closed")

    async def main():
        each = steps()
        print(await anext(each))
        print(await each.asend("x"))
        print(await each.athrow(KeyError("k")))
        await each.aclose()
        print([value async for value in sky.silent(steps)()])

    asyncio.run(main())
    """)
    assert said.stdout == ["1", "2", "3", "[1, 2, 3]"]
    assert said.log == ["begin", "got x", "caught", "closed", "begin", "got None", "closed"]


def test_threads_may_overlap_in_any_order() -> None:
    said = run("""
    entered, leave = threading.Event(), threading.Event()

    @sky.stdout(only="head")
    def first():
        print("first")
        entered.set()
        leave.wait()

    @sky.stdout(only="head")
    def second():
        print("second")
        leave.set()
        thread.join()  # the one that redirected the output leaves before this one
        print("second still")

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    second()
    print("shown")
    """)
    assert said.stdout == ["shown"]
    assert said.log == ["first", "second", "second still"]


def test_a_function_keeps_its_kind_and_its_name() -> None:
    import inspect

    async def coroutine() -> None: ...

    async def async_generator():  # type: ignore[no-untyped-def]
        yield

    def generator():  # type: ignore[no-untyped-def]
        yield

    for function, is_kind in [
        (coroutine, inspect.iscoroutinefunction),
        (async_generator, inspect.isasyncgenfunction),
        (generator, inspect.isgeneratorfunction),
    ]:
        for decorated in (sky.silent(function), sky.stdout(only="head")(function)):
            assert is_kind(decorated)
            assert decorated.__name__ == function.__name__


# -- what is refused -------------------------------------------------------------------------------


def test_wrong_use_says_what_to_type() -> None:
    with pytest.raises(sky.UsageError, match='only="head", or a function'):
        sky.stdout(only="tail")  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match='only="head", or a function'):
        sky.stderr(only=0)  # type: ignore[arg-type]
    with pytest.raises(sky.UsageError, match=r'write @sky.stdout\(only="head"\)'):
        sky.stdout(print)
    with pytest.raises(sky.UsageError, match=r'write @sky.stderr\(only="head"\)'):
        sky.stderr()
    with pytest.raises(sky.UsageError, match="below @sky.compute"):
        sky.silent(sky.compute(print))
    with pytest.raises(sky.UsageError, match="below @sky.compute"):
        sky.stdout(only="head")(sky.compute(print))
    with pytest.raises(sky.UsageError, match="above a function, not int"):
        sky.silent(3)  # type: ignore[type-var]
