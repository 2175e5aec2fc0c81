"""Which packages a notebook imports, and which of them nodes cannot have from an index."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import jupyter_sky as sky
from jupyter_sky.api.environment.imports import modules_in, modules_typed, packages
from jupyter_sky.api.environment.repack import wheel_of
from jupyter_sky.api.environment.resolve import resolve
from tests.lab import wheels


def test_names_of_a_notebook_tell_its_modules() -> None:
    namespace = {"np": np, "F": Fraction, "made": np.zeros(1), "loads": json.loads, "_hidden": np}
    assert modules_in(namespace) == {"numpy", "fractions", "json"}
    cells = [
        "%%sky --nodes 2\nimport torch.nn as nn, einops\nfrom a.b import c",
        "def f():\n    import late\n!pip install x\nfrom . import beside",
    ]
    assert modules_typed(cells) == {"torch.nn", "einops", "a.b", "late"}


def test_modules_are_of_packages_in_the_versions_of_here() -> None:
    found = {each.requirement for each in packages(["numpy.linalg", "json", "yaml", "nowhere"])}
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "PyYAML")}
    assert found == {f"{name}=={version}" for name, version in versions.items()}
    # What makes a notebook is none of it, and jupyter_sky itself is sent.
    assert packages(["IPython", "ipykernel.zmqshell", "jupyter_sky"]) == []


def test_only_source_that_can_be_read_is_searched_for_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trained"
    package.mkdir()
    (package / "__init__.py").write_text("import yaml\n")
    for name in ("data.bin", "broken.py"):
        (package / name).symlink_to("/proc/self/mem")  # it cannot be read, not even by root
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [each.name for each in packages(["trained"])] == ["PyYAML"]


def test_what_no_index_has_is_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "site-packages"
    with zipfile.ZipFile(wheels.write(tmp_path, "own", "0.1", own="X = 1\n")) as archive:
        archive.extractall(place)
    about = place / "own-0.1.dist-info"
    (about / "direct_url.json").write_text('{"url": "file:///src/own", "dir_info": {}}')
    monkeypatch.syspath_prepend(str(place))
    image, left_out = resolve(sky.Image(), [], ["own"])
    assert (image.pins, left_out) == (("own==0.1",), ())
    [wheel] = image.wheels
    target = tmp_path / "again"
    words = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), wheel]
    subprocess.run([sys.executable, "-m", *words], check=True)
    assert (target / "own.py").read_text() == "X = 1\n"
    # Source that is installed as editable travels with the cells that import it.
    editable = {"url": "file:///src/own", "dir_info": {"editable": True}}
    (about / "direct_url.json").write_text(json.dumps(editable))
    assert resolve(sky.Image(), [], ["own"])[0].pins == ()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_conda_has_compiled_is_taken_from_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    """It needs libraries of conda, which nodes have not. What is Python alone is taken along."""
    place = tmp_path / "site-packages"
    with zipfile.ZipFile(wheels.write(tmp_path, "own", "0.1", own="X = 1\n")) as archive:
        archive.extractall(place)
    about = place / "own-0.1.dist-info"
    (about / "direct_url.json").write_text(
        '{"dir_info": {}, "url": "file:///home/conda/feedstock_root/build_artifacts/own_1/work"}'
    )
    (about / "INSTALLER").write_text("conda\n")
    if is_compiled:
        wheel = about / "WHEEL"
        wheel.write_text(wheel.read_text().replace("Purelib: true", "Purelib: false"))
    monkeypatch.syspath_prepend(str(place))
    image, left_out = resolve(sky.Image(), [], ["own"])
    assert (image.pins, left_out) == (("own==0.1",), ())
    assert len(image.wheels) == (0 if is_compiled else 1)


def test_of_variants_of_a_package_nodes_get_the_one_that_was_installed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As opencv-python and opencv-python-headless, of which each has a whole cv2."""
    place = tmp_path / "site-packages"
    seen = {f"seen/{each}": "X = 1\n" for each in ("__init__", "core")}
    for name, seconds, files in (
        ("seen_windows", 3, seen),
        ("seen", 2, seen),
        ("shared_a", 1, {"shared/__init__": "", "shared/a/__init__": ""}),
        ("shared_b", 1, {"shared/__init__": "", "shared/b/__init__": ""}),
    ):
        with zipfile.ZipFile(wheels.write(tmp_path, name, "0.1", **files)) as archive:
            archive.extractall(place)
        os.utime(place / f"{name}-0.1.dist-info", (seconds, seconds))
    monkeypatch.syspath_prepend(str(place))
    for modules in (["seen"], ["seen.core"]):
        assert [each.name for each in packages(modules)] == ["seen_windows"]
    # Others only have the same folder: its name alone means none of them.
    assert packages(["shared"]) == []
    assert [each.name for each in packages(["shared.b"])] == ["shared_b"]


def test_a_wheel_of_what_is_installed_can_be_made_by_two_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    text = "X = 1\n" * 200_000
    with zipfile.ZipFile(wheels.write(tmp_path, "twice", "0.1", twice=text)) as archive:
        archive.extractall(place)
    os.utime(place / "twice.py", (0, 0))  # as reproducible builds leave their files
    monkeypatch.syspath_prepend(str(place))
    begin, made = threading.Barrier(8), []

    def make() -> None:
        begin.wait()
        made.append(wheel_of(importlib.metadata.distribution("twice")))

    threads = [threading.Thread(target=make) for _ in range(begin.parties)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == made[:1] * begin.parties and made[0]
    with zipfile.ZipFile(made[0]) as wheel:
        assert wheel.testzip() is None and wheel.read("twice.py").decode() == text
    assert list(made[0].parent.iterdir()) == [made[0]]


def test_offline_what_is_not_among_the_wheels_is_named(tmp_path: Path) -> None:
    wheels.write(tmp_path, "greeting", "1.0", greeting="")
    image, [sentence] = resolve(sky.Image(pip_indexes=[str(tmp_path)]), [], ["numpy"])
    assert image.pins == ()
    version = importlib.metadata.version("numpy")
    assert sentence == (
        f"nodes do without numpy {version}, which the notebook has, and {tmp_path} has not: "
        f"`%pip download -d {tmp_path} numpy=={version}` gets it."
    )
    assert resolve(sky.Image(like=None), [], ["numpy"]) == (sky.Image(like=None), ())
