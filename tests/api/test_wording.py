"""What pools say, in words of the place where it is read: a script has no cells and no magics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.api.display.wording import reword, worded
from jupyter_sky.errors import ScriptFailed, SkyError, UsageError
from tests.paths import ROOT
from tests.waiting import PATIENCE

_SCRIPT = """
import os, signal, time
import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry

@sky.compute
def work(seconds=0):
    time.sleep(seconds)

@sky.compute
def values():
    yield 1
    time.sleep(600)

def caught(call):
    try:
        call()
    except sky.errors.SkyError as error:
        print(error, flush=True)

@sky.compute
def ask():
    breakpoint()
    return input("Name? ")

with sky.ComputePool(nodes=1, name="nightly") as pool:
    try:
        ask() >> pool
    except RuntimeError as error:
        print(error, flush=True)
    future = work(600) > pool
    caught(lambda: pool.scale(2))
    future.cancel()
    stream = values() >> pool
    next(stream)
    os.kill(registry.find("nightly").machines[0]["pid"], signal.SIGKILL)
    caught(lambda: next(stream))
    caught(lambda: work() @ pool)
    caught(lambda: work() >> pool)
    caught(lambda: (work() > pool).result())
    caught(lambda: pool.map(work, range(2)))
    caught(lambda: sky.gather(work(), work()) >> pool)
    caught(lambda: pool.scale(2))
"""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = (sys.executable, *words)
    return subprocess.run(
        words,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_an_error_that_a_script_catches_advises_what_can_be_done_there(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = _run(str(script))
    asked, busy, *lost = done.stdout.splitlines()
    assert "nobody can be asked here: give the answer as an argument" in asked, done.stderr
    assert "or where a program without a terminal runs this" in done.stderr
    assert busy.endswith("or stop that first with `jupyter sky interrupt`."), done.stderr
    what = "cluster nightly is lost: the agent of rank 0 ended."
    assert lost == [f"{what} Start another pool to have a new one."] * 7, done.stderr


@pytest.mark.parametrize(
    ("before", "command"), [("", "jupyter sky"), ("%load_ext jupyter_sky\n", "%sky")]
)
def test_ipython_is_advised_magics_once_they_are_loaded(before: str, command: str) -> None:
    lines = (
        "import jupyter_sky as sky",
        "with sky.ComputePool(name='nightly'):",
        "    sky.ComputePool(name='nightly').__enter__()",
    )
    done = _run("-m", "IPython", "--colors=nocolor", "-c", before + "\n".join(lines))
    assert f"end it with `{command} down nightly`" in done.stdout + done.stderr


def test_a_program_of_jupyter_sky_run_is_advised_commands_of_a_terminal(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"# %%{_SCRIPT.partition('    stream =')[0]}")
    main = "import sys; from jupyter_sky.notebook.cli import main; sys.exit(main())"
    done = _run("-c", main, "run", str(program))
    assert done.returncode == 0, done.stderr
    assert "or stop that first with `jupyter sky interrupt`." in done.stdout


@pytest.mark.parametrize("stream", ["None", "types.SimpleNamespace(write=len, flush=int)"])
def test_a_pool_of_a_program_without_standard_error(stream: str) -> None:
    done = _run(
        "-c",
        f"import sys, types\nsys.stderr = {stream}\nimport jupyter_sky as sky\n"
        "with sky.ComputePool(nodes=1) as pool: print(sky.compute(abs)(-5) >> pool)",
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


class _Refused(SkyError):
    """A type of the user's own."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)


def test_errors_of_a_type_of_the_users_own_keep_their_arguments() -> None:
    mine, empty, ours = _Refused(5, "no"), SkyError(), ScriptFailed("`%sky down` ends it.", 3)
    for each in (mine, empty, ours):
        reword(each)
    assert (mine.args, empty.args) == ((5, "no"), ())
    assert (str(ours), ours.status) == ("`jupyter sky down` ends it.", 3)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("type `--region us-east-1`.", 'type `region="us-east-1"`.'),
        ("name more with `--hosts`.", "name more with `hosts`."),
        ("name them, as in `--hosts gpu1,gpu2`.", 'name them, as in `hosts="gpu1,gpu2"`.'),
        ("type `--gpu L4:8` and more `--nodes`.", 'type `accelerator="L4:8"` and more `nodes`.'),
        ("there is no run--pip.py.", "there is no run--pip.py."),
        ("type `--nodes 2`, or another --zone.", "type `nodes=2`, or another zone."),
        ("--max-cost cannot be kept: --max-costs?", "max_cost cannot be kept: --max-costs?"),
        ("`%sky start x --max-cost 5` does.", "`jupyter sky start x --max-cost 5` does."),
        (
            "pip said: use --pre-release or --time-limit",
            "pip said: use --pre-release or --time-limit",
        ),
    ],
)
def test_pools_are_told_of_arguments_and_not_of_options(said: str, shown: str) -> None:
    assert worded(said) == worded(shown) == shown


def test_what_a_provider_refuses_is_said_of_the_arguments_of_a_pool() -> None:
    with (
        pytest.raises(UsageError, match=r"1 host is named: name more with `hosts`, or ask for few"),
        sky.ComputePool(provider=sky.SSH("gpu1"), nodes=3),
    ):
        pass
