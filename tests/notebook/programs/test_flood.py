"""``jupyter sky run`` into a file, which takes more than a page: no line is left out."""

from __future__ import annotations

from pathlib import Path

from tests.notebook.programs.conftest import Terminal, write_notebook


def test_all_of_what_a_program_prints_arrives(terminal: Terminal, tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "a.ipynb",
        "%%sky --nodes 1\nfor number in range(100_000): print(number)",
        "%%sky --sh\nseq 100000 199999",
    )
    done = terminal.sky("run", "a.ipynb")
    numbers = [line for line in done.stdout.splitlines() if line.isdecimal()]
    assert numbers == [str(number) for number in range(200_000)]
    assert "not shown" not in done.stdout


def test_all_of_what_a_task_prints_arrives(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("run: seq 200000")
    try:
        done = terminal.sky("launch", "task.yaml", "--cluster", "flood")
    finally:
        terminal.sky("down", "flood")
    assert done.stdout.splitlines() == [str(number) for number in range(1, 200_001)]


def test_the_notice_of_a_flood_says_what_to_type_in_a_terminal(
    terminal: Terminal, tmp_path: Path
) -> None:
    flood = "for _ in range(90): print('x' * 1_000_000)"
    write_notebook(tmp_path / "a.ipynb", f"%%sky --nodes 1\n{flood}")
    done = terminal.sky("run", "a.ipynb")
    assert "MB not shown here: `jupyter sky logs 0 --save FILE` has all of them …]" in done.stdout
