"""Values of more arrays than a process may have open files."""

from __future__ import annotations

import psutil

from tests.installed import on_first_use

numpy = on_first_use("numpy")

FEW = 100
"""Files that a rank may open; on most systems it is 1,024, and models have more tensors."""

BACK = """
back = [each + 1 for each in arrays]
moved = {name: each + 1 for name, each in parameters.items()}
"""


def open_files() -> int:
    return psutil.Process().num_fds()


def test_no_file_stays_open_for_an_array(new) -> None:
    cells = new(nodes=1, framework=False)
    cells.run("import resource\n_, most = resource.getrlimit(resource.RLIMIT_NOFILE)")
    cells.run(f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, most))")
    arrays = [numpy.arange(number, number + 900) for number in range(3000)]
    parameters = {str(number): numpy.full(200_000, float(number)) for number in range(FEW + 20)}
    cells.namespace.update(arrays=arrays, parameters=parameters)
    before = open_files()
    found = cells.run(BACK, names=["arrays", "parameters"], values={0: ["back", "moved"]})[0]
    assert open_files() < before + 20
    assert all(map(numpy.array_equal, found["back"], (each + 1 for each in arrays)))
    assert all((each == int(name) + 1).all() for name, each in found["moved"].items())
