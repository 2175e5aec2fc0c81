"""The guides to frameworks run, and show what their saved outputs show."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.guides import guides
from tests.guides.guides import code, text_of

pytestmark = pytest.mark.timeout(900)  # three notebooks, on a machine that has other tests to do

FEWER = {
    "mingpt": {
        "parent.rglob(": "parent.glob(",  # less to read, and to learn
        "STEPS = 1500": "STEPS = 100",
        "WIDTH, HEADS, LAYERS = 64, 96, 4, 3": "WIDTH, HEADS, LAYERS = 16, 32, 2, 1",
        "(24,)": "(8,)",
    },
    "huggingface": {"num_train_epochs=6": "num_train_epochs=1"},
    "jax-and-keras": {"epochs=12": "epochs=7", "range(0, 12, 3)": "range(0, 7, 3)"},
}


@pytest.fixture(scope="module", params=["saved", "fresh"])
def shown(request: pytest.FixtureRequest) -> dict[str, nbformat.NotebookNode]:
    """The guides as they are saved, and as they run here, smaller and with fewer steps."""
    if request.param == "saved":
        return {name: guides.saved(name) for name in FEWER}
    return {name: guides.done(name, fewer) for name, fewer in FEWER.items()}


def test_a_gpt_learns_to_write(shown: dict[str, nbformat.NotebookNode]) -> None:
    notebook = shown["mingpt"]
    trained = text_of(code(notebook, "%%sky --nodes 2"))
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", trained, re.M)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert losses[-1] < 3.5  # letters drawn at random have 4.7
    written = text_of(code(notebook, "@torch.no_grad"))
    assert written.startswith("Return the ")
    assert len(written) > 400


def test_a_trainer_uses_all_ranks(shown: dict[str, nbformat.NotebookNode]) -> None:
    notebook = shown["huggingface"]
    trained = text_of(code(notebook, "%%sky --nodes 2"))
    assert re.search(r"^accuracy [01]\.\d{3} on 512 texts, by 2 ranks$", trained, re.M)
    assert "DistilBertForSequenceClassification" in text_of(code(notebook, "assert len"))


def test_jax_and_keras_use_all_ranks(shown: dict[str, nbformat.NotebookNode]) -> None:
    notebook = shown["jax-and-keras"]
    summed = text_of(code(notebook, "%%sky --nodes 2"))
    assert "(8,) on 2 devices of 2 processes: the sum is 28.0" in summed
    trained = text_of(code(notebook, "%%sky --gather accuracy"))
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", trained, re.M)]
    assert losses[-1] < losses[0] / 2
    accuracies = re.findall(r"'(0\.\d\d)'", text_of(code(notebook, "%sky pull weights")))
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize("name", FEWER)
def test_the_saved_files_name_no_machine(name: str) -> None:
    assert guides.names_no_machine(name)
