"""The first steps: what is missing or mistyped gets one sentence, with the line to type."""

from __future__ import annotations

import pytest
from IPython.utils.capture import capture_output

from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.ipython.auto_cells import runs_locally
from tests.notebook.conftest import Notebook


def below_error(notebook: Notebook, cell: str) -> str:
    """Run a cell that fails; return what stands below its error."""
    with capture_output(display=False) as captured:
        result = notebook.shell.run_cell(cell, store_history=True)
    assert isinstance(result.error_in_exec, NameError)
    return str(captured.stderr)


def test_a_name_that_only_ranks_have_is_one_line_away(notebook: Notebook) -> None:
    assert below_error(notebook, "loss") == "", "there is no cluster yet"
    notebook.run(
        "%%sky --nodes 2 --cluster names\n"
        "import jupyter_sky as sky\nloss = sky.instance_info().rank"
    )
    notebook.run("%%sky --ranks 1\nonly_there = 1")
    hint = "loss is on the ranks of names: `%sky pull loss` brings it here\n"
    assert below_error(notebook, "print(loss)") == hint
    assert "`%sky pull only_there --ranks 1`" in below_error(notebook, "only_there")
    assert below_error(notebook, "nowhere") == ""
    for cell in ("%sky push loss", "%%sky --in loss\npass"):
        with pytest.raises(UsageError, match="only the ranks have it: `%sky pull loss` brings it"):
            notebook.run(cell)

    with pytest.raises(UsageError) as mistyped:
        notebook.run("%sky pull losss")
    assert str(mistyped.value) == (
        "%sky pull losss: rank 0 has no losss; did you mean `%sky pull loss`?"
    )
    with pytest.raises(UsageError, match="rank 1 has no modl; it has loss, only_there, sky"):
        notebook.run("%sky pull modl --ranks 1")
    for option in ("--out", "--gather"):
        with pytest.raises(NameError) as missing:
            notebook.run(f"%%sky {option} losss\npass")
        assert missing.value.advice == f"did you mean `{option} loss`?"
    with pytest.raises(NameError) as missing:
        notebook.run("%%sky\nprint(losss)")
    assert missing.value.advice == "did you mean `loss`?"

    notebook.run("%sky pull loss")
    assert notebook.namespace["loss"] == 0


@pytest.mark.parametrize("above", ["# train", "x = 1", "import torch\n\n# train"])
def test_a_magic_below_other_lines_is_told_where_it_belongs(notebook: Notebook, above: str) -> None:
    cell = f"{above}\n%%sky --nodes 2\ntrain()"
    with pytest.raises(UsageError, match="move `%%sky --nodes 2` above"):
        notebook.run(cell.replace("import torch", "import os"))
    assert runs_locally(cell), "also where `%sky auto` is on"
