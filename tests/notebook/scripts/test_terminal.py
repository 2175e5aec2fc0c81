"""``jupyter sky torchrun`` and ``jupyter sky launch`` in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.notebook.kernels import PATIENCE


def sky(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_sky", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=dict(os.environ),
    )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").touch()
    new = ("--cluster", "scripts", "--nodes", "2", "--plugin", "none")
    started = sky("launch", "empty.yaml", *new)
    assert started.returncode == 0
    assert "empty.yaml has no `run`, so it only starts a cluster" in started.stderr
    assert (
        "scripts stays up: `jupyter sky down scripts` ends it; a cluster of local" in started.stderr
    )
    yield "scripts"
    assert sky("down", "scripts").returncode == 0


def test_a_script_from_a_terminal(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, time\n"
        "while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n"
        "sys.stdout.write(f'rank {os.environ[\"RANK\"]}\\n')\n"
    )
    (tmp_path / "fail.yaml").write_text("num_nodes: 2\nrun: exit $((3 + SKYPILOT_NODE_RANK))")
    failed = sky("launch", "fail.yaml")
    assert failed.returncode in (3, 4)
    assert "ScriptFailed: the script ended with exit status" in failed.stderr
    wrong = sky("torchrun", "trian.py")
    assert wrong.returncode == 2
    assert "did you mean train.py?" in wrong.stderr
    unkept = sky("torchrun", "--background", "--timeout", "1h", "train.py")
    assert unkept.returncode == 2
    assert "ends at once with --background: leave one of them out" in unkept.stderr
    left = sky("torchrun", "--background", "train.py", str(tmp_path / "go"))
    assert left.returncode == 0, left.stderr
    assert "`jupyter sky attach scripts` shows its output" in left.stdout
    command = [sys.executable, "-P", "-m", "jupyter_sky", "attach", "scripts"]
    with subprocess.Popen(command, stdout=PIPE, text=True) as followed:
        assert followed.stdout and followed.stdout.readline().startswith("scripts: ")
        (tmp_path / "go").touch()
        lines = followed.communicate(timeout=PATIENCE)[0].splitlines()
    # Which node is which rank is torchrun's to say.
    said = [line.partition(" │ ") for line in lines]
    assert sorted(node for node, _, _ in said) == ["0", "1"]
    assert sorted(line for _, _, line in said) == ["rank 0", "rank 1"]
    (tmp_path / "wait.yaml").write_text("run: echo begun; exec sleep 600")
    command = [sys.executable, "-P", "-m", "jupyter_sky", "launch", "wait.yaml"]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as ended:
        assert ended.stdout and any(line == "begun\n" for line in ended.stdout)
        ended.terminate()
        _, stopped = ended.communicate(timeout=PATIENCE)
    assert ended.returncode == 143 and "rank 0 stopped" in stopped
    (tmp_path / "wait.yaml").write_text("run: 'while :; do echo begun; sleep 0.1; done'")
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as piped:
        assert piped.stdout and piped.stderr
        assert any(line == "begun\n" for line in piped.stdout)
        piped.stdout.close()  # as `head` does
        stopped = piped.stderr.read()
    assert stopped == "scripts: the run was stopped, as nobody reads its output\n"
    assert piped.returncode == 1
    assert " idle " in sky("status").stdout


def test_scripts_and_task_files_are_utf_8_wherever_the_user_is(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "run: printf 'Grüße' | wc -c\n"
    (tmp_path / "task.yaml").write_bytes(text.encode())
    for name, value in {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}.items():
        monkeypatch.setenv(name, value)
    assert sky("launch", "task.yaml", "--cluster", cluster).stdout.strip() == "7"
    new = ("--cluster", "ascii", "--plugin", "none")
    assert sky("launch", "task.yaml", *new).stdout.strip() == "7"
    assert sky("down", "ascii").returncode == 0
