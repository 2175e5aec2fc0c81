"""What a notebook sets in a library, as another process takes it over."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.serialization.process.library_settings import LibrarySettings, LibraryWatch

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")
matplotlib = pytest.importorskip("matplotlib")


def back_to_usual() -> None:
    np.set_printoptions(precision=8)
    pd.reset_option("^display.(max_columns|float_format)$")
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    matplotlib.rcdefaults()


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    back_to_usual()
    yield
    back_to_usual()


def plot(key: str) -> Any:
    return matplotlib.rcParams[key]


def set_plot(key: str, value: Any) -> None:
    matplotlib.rcParams[key] = value


CYCLE = "axes.prop_cycle"

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "precision": (lambda: np.set_printoptions(precision=3), lambda: str(np.array([1 / 3]))),
    "columns": (
        lambda: pd.set_option("display.max_columns", 3),
        lambda: pd.get_option("display.max_columns"),
    ),
    "floats": (
        lambda: pd.set_option("display.float_format", "{:.1f}".format),
        lambda: str(pd.Series([1 / 3])),
    ),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.ones(1).dtype),
    "products": (
        lambda: torch.set_float32_matmul_precision("high"),
        torch.get_float32_matmul_precision,
    ),
    "plots": (lambda: set_plot("figure.dpi", 33), lambda: plot("figure.dpi")),
    "colours": (lambda: set_plot(CYCLE, matplotlib.cycler(color="rgb")), lambda: plot(CYCLE)),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_setting_is_taken_over_and_taken_back(what: str, tmp_path: Path) -> None:
    change, read = SETTINGS[what]
    watch, as_usual = LibraryWatch(), read()
    assert watch.changed() == {}
    change()
    as_set, sent = read(), pickle.dumps(LibrarySettings(watch.changed()))
    assert as_set != as_usual
    assert watch.changed() is watch.changed()

    back_to_usual()
    pickle.loads(sent).install(tmp_path)
    assert read() == as_set

    back_to_usual()
    taken_back = pickle.dumps(LibrarySettings(watch.changed()))
    change()
    pickle.loads(taken_back).install(tmp_path)
    assert read() == as_usual


def test_what_cannot_be_read_elsewhere_or_is_of_this_process_stays_here() -> None:
    watch = LibraryWatch()
    pd.set_option("display.float_format", lambda number: "?")
    set_plot("backend", "svg")
    set_plot("interactive", True)
    assert watch.changed() == {}


def test_a_module_that_is_imported_later_is_changed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comes_later.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def change(module: Any) -> None:
        module.value += 1

    for _ in range(2):  # it is asked for again with each change
        after_import("comes_later", change)
    import comes_later  # type: ignore[import-not-found]

    assert comes_later.value == 2
    assert comes_later.__spec__.loader.get_source("comes_later") == "value = 1\n"
    after_import("comes_later", change)
    assert sys.modules.pop("comes_later").value == 3
