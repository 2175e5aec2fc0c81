"""What the suite imports beside PyTorch, as wheels that travel to a machine without a network.

``python -m tests.gpu.wheels --python 3.12`` puts them into build/gpu, which git ignores: the folder
of the repository is then all that the other machine needs. There they are unpacked, not installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/gpu"
LIMIT = 60 * 2**20  # bytes

_MORE = ("pytest>", "pytest-xdist>", "ipykernel>")
_GLIBC = ("2_39", "2_34", "2_28", "2_27", "2_24", "2_17")


def unpack() -> list[Path]:
    """Unpack the wheels, if there are any; return the folder to import them from."""
    found = sorted(FOLDER.glob("*.whl"))
    if not found:
        return []
    # By this name it is known for a folder of what is installed: the user's own code would be sent.
    target = FOLDER / "site-packages"
    shutil.rmtree(target, ignore_errors=True)
    for wheel in found:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(target)
    return [target]


def main() -> int:
    """Fetch the wheels and return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.gpu.wheels", description=__doc__)
    parser.add_argument("--python", default="3.12", help="the Python of that machine")
    parser.add_argument("--machine", default="x86_64", help="its processor, as `uname -m` says")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    platforms = [f"manylinux_{each}_{options.machine}" for each in _GLIBC]
    platforms += [f"manylinux{each}_{options.machine}" for each in ("2014", "2010", "1")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(FOLDER)]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={options.python}"]
    command += [f"--platform={each}" for each in platforms]
    command += ["--constraint", str(ROOT / "constraints.txt"), *_needed()]
    if subprocess.run(command).returncode:
        return 1
    _write_commit()
    size = sum(each.stat().st_size for each in FOLDER.iterdir())
    count = len(list(FOLDER.glob("*.whl")))
    print(f"{count} wheels, {size / 2**20:.0f} MB, for Python {options.python} in {FOLDER}")
    if size > LIMIT:
        print(f"they are larger than {LIMIT // 2**20} MB", file=sys.stderr)
        return 1
    print("carry the repository with this folder to the machine, and run `make test-gpu` there")
    return 0


def _needed() -> list[str]:
    """Return what the package needs everywhere, a notebook's kernel, and what runs the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    more = [each for each in (*extras["test"], *extras["demo"]) if each.startswith(_MORE)]
    return [*project["dependencies"], *more]


def _write_commit() -> None:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    (FOLDER / "commit").write_text(asked.stdout)


if __name__ == "__main__":
    sys.exit(main())
