"""Variables in the environment of a notebook's process that mean this process alone."""

from __future__ import annotations

OF_NOTEBOOK = frozenset({"WANDB_SERVICE", "CLEARML_PROC_MASTER_ID"})
"""They lead to helpers of libraries, which libraries start where there are none.

On another machine they lead nowhere, and on this one only until the notebook's kernel ends.
"""
