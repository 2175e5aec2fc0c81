"""What `--profile` records of a cell that works on a GPU."""

from __future__ import annotations

from jupyter_sky.cluster.profiling.trace import trace
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.profiling.memory import memory_text
from jupyter_sky.notebook.profiling.timeline import as_text
from tests.cluster.cells import Cells
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine

CODE = """
a = torch.randn(4096, 4096, device="cuda")
for step in range(50):
    a = a @ a / 64
torch.cuda.synchronize()
"""


def test_a_profile_has_the_time_of_kernels(cells: Cells, gpu: GPUMachine, check: Check) -> None:
    cells.run("import torch")
    cells.run(CODE)  # what CUDA and cuBLAS prepare is not of interest
    task = Task(cells.cluster.all_ranks, code=CODE, records=("torch", "memory"))
    run = cells.cluster.run(task)
    run.follow()
    run.values()
    found = trace(cells.cluster.profiler.recorded(run.id, "torch", task.ranks))
    assert "rank 0" in as_text(found, "cell", "trace.json has it")
    memory = cells.cluster.profiler.recorded(run.id, "memory", task.ranks)
    check.note(memory_text(memory, "cell").splitlines()[0])
    [device] = memory.by_rank[0]["devices"]
    assert device["name"] == gpu.gpus[0].name
    assert 2 * 4 * 4096**2 <= device["peak_allocated"] < 2**30
    rows = found.operations(40)
    check.note("; ".join(f"{row.name[:40]} {row.calls}" for row in rows[:6]))
    # What cuBLAS calls its kernels is its own affair: that of the products takes most of the time.
    assert rows[0].calls == 50
    assert rows[0].total > 0
