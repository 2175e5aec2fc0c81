"""Titles of cells: what a reader would call them."""

from __future__ import annotations

import pytest

from jupyter_sky.analysis.cell_title import cell_title


@pytest.mark.parametrize(
    ("cell", "title"),
    [
        ("", ""),
        ("\n\n", ""),
        ("x = 1", "x = 1"),
        ("# Train the small model\nimport torch\ntrain()", "Train the small model"),
        ("# %% [train]\ntrain()", "train()"),
        ("#\n# ----\nx = 1", "x = 1"),
        ("import torch\ntorch.manual_seed(0)\nlosses = train(model)", "losses = train(model)"),
        ("torch.manual_seed(0)\nprint('begin')\nfit(model)\nprint('end')", "fit(model)"),
        (
            "model = Net()\noptimizer = SGD(model)\nfor epoch in range(3):\n    step()\nmodel",
            "for epoch in range(3)",
        ),
        (
            "for each in names:\n    x\nfor epoch in range(3):\n    a()\n    b()\nprint(1)",
            "for epoch in range(3)",
        ),
        ("with tf.GradientTape() as tape:\n    loss = f()", "with tf.GradientTape() as tape"),
        ("@decorated\ndef train(model):\n    pass", "def train(model)"),
        ("import os, time", "import os, time"),
        ("load()\ntrain()", "train()"),
        ("await train()", "await train()"),
        ("n = 2\nresults = train(n) @ pool\nn", "results = train(n) @ pool"),
        ("dist.all_reduce(x)\nx", "dist.all_reduce(x)"),
        ("%matplotlib inline\ntrain()", "train()"),
        ("!nvidia-smi", "!nvidia-smi"),
        ("print('hello')", "print('hello')"),
        ("x = = 1", "x = = 1"),
        ("for a in b: " + "x" * 100, "for a in b: " + "x" * 47 + "…"),
    ],
)
def test_a_cell_is_called_by_what_it_is_about(cell: str, title: str) -> None:
    assert cell_title(cell) == title
