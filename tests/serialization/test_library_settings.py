"""What a notebook sets in a library, as another process takes it over."""

from __future__ import annotations

import decimal
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.serialization.process.library_settings import LibrarySettings, LibraryWatch


@dataclass(frozen=True)
class Libraries:
    """What a notebook has imported, with usual settings."""

    np: Any
    pd: Any
    torch: Any
    matplotlib: Any
    sklearn: Any

    def back_to_usual(self) -> None:
        self.np.set_printoptions(precision=8)
        self.np.seterr(invalid="warn")
        decimal.getcontext().prec = 28
        sys.setrecursionlimit(1000)
        self.pd.reset_option("^display.(max_columns|float_format)$")
        self.torch.set_default_dtype(self.torch.float32)
        self.torch.set_float32_matmul_precision("highest")
        self.torch.backends.cuda.matmul.fp32_precision = "none"
        self.torch.backends.mkldnn.matmul.fp32_precision = "none"
        self.torch.use_deterministic_algorithms(False)
        self.torch.multiprocessing.set_sharing_strategy("file_descriptor")
        self.torch.set_grad_enabled(True)
        self.torch.set_default_device(None)
        self.torch.set_printoptions(profile="default")
        self.matplotlib.rcdefaults()
        self.sklearn.set_config(transform_output="default")

    def set_plot(self, key: str, value: Any) -> None:
        self.matplotlib.rcParams[key] = value


@pytest.fixture
def libs() -> Iterator[Libraries]:
    names = ("numpy", "pandas", "torch", "matplotlib", "sklearn")
    made = Libraries(*map(pytest.importorskip, names))
    made.back_to_usual()
    yield made
    made.back_to_usual()


CYCLE = "axes.prop_cycle"

SETTINGS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "precision": (
        lambda libs: libs.np.set_printoptions(precision=3),
        lambda libs: str(libs.np.array([1 / 3])),
    ),
    "errors": (
        lambda libs: libs.np.seterr(invalid="raise"),
        lambda libs: libs.np.geterr()["invalid"],
    ),
    "decimals": (
        lambda libs: setattr(decimal.getcontext(), "prec", 5),
        lambda libs: decimal.Decimal(1) / 3,
    ),
    "depth": (
        lambda libs: sys.setrecursionlimit(5000),
        lambda libs: sys.getrecursionlimit(),
    ),
    "columns": (
        lambda libs: libs.pd.set_option("display.max_columns", 3),
        lambda libs: libs.pd.get_option("display.max_columns"),
    ),
    "floats": (
        lambda libs: libs.pd.set_option("display.float_format", "{:.1f}".format),
        lambda libs: str(libs.pd.Series([1 / 3])),
    ),
    "dtype": (
        lambda libs: libs.torch.set_default_dtype(libs.torch.float64),
        lambda libs: libs.torch.ones(1).dtype,
    ),
    "products": (
        lambda libs: libs.torch.set_float32_matmul_precision("high"),
        lambda libs: libs.torch.get_float32_matmul_precision(),
    ),
    "products by device": (
        lambda libs: setattr(libs.torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda libs: libs.torch.backends.cuda.matmul.fp32_precision,
    ),
    "determinism": (
        lambda libs: libs.torch.use_deterministic_algorithms(True, warn_only=True),
        lambda libs: libs.torch.get_deterministic_debug_mode(),
    ),
    "sharing": (
        lambda libs: libs.torch.multiprocessing.set_sharing_strategy("file_system"),
        lambda libs: libs.torch.multiprocessing.get_sharing_strategy(),
    ),
    "gradients": (
        lambda libs: libs.torch.set_grad_enabled(False),
        lambda libs: (libs.torch.ones(1, requires_grad=True) * 2).requires_grad,
    ),
    "device": (
        lambda libs: libs.torch.set_default_device("meta"),
        lambda libs: libs.torch.ones(1).device,
    ),
    "tensors": (
        lambda libs: libs.torch.set_printoptions(precision=2, sci_mode=True),
        lambda libs: str(libs.torch.ones(2) / 3),
    ),
    "estimators": (
        lambda libs: libs.sklearn.set_config(transform_output="pandas"),
        lambda libs: libs.sklearn.get_config()["transform_output"],
    ),
    "plots": (
        lambda libs: libs.set_plot("figure.dpi", 33),
        lambda libs: libs.matplotlib.rcParams["figure.dpi"],
    ),
    "colours": (
        lambda libs: libs.set_plot(CYCLE, libs.matplotlib.cycler(color="rgb")),
        lambda libs: libs.matplotlib.rcParams[CYCLE],
    ),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_setting_is_taken_over_and_taken_back(libs: Libraries, what: str, tmp_path: Path) -> None:
    change, read = SETTINGS[what]
    watch, as_usual = LibraryWatch(), read(libs)
    assert watch.changed() == {}
    change(libs)
    as_set, sent = read(libs), pickle.dumps(LibrarySettings(watch.changed()))
    assert as_set != as_usual
    assert watch.changed() is watch.changed()

    libs.back_to_usual()
    pickle.loads(sent).install(tmp_path)
    assert read(libs) == as_set

    libs.back_to_usual()
    taken_back = pickle.dumps(LibrarySettings(watch.changed()))
    change(libs)
    pickle.loads(taken_back).install(tmp_path)
    assert read(libs) == as_usual


def test_what_cannot_be_read_elsewhere_or_is_of_this_process_stays_here(libs: Libraries) -> None:
    watch = LibraryWatch()
    libs.pd.set_option("display.float_format", lambda number: "?")
    libs.set_plot("backend", "svg")
    libs.set_plot("interactive", True)
    assert watch.changed() == {}


def test_looking_at_plots_chooses_no_backend(libs: Libraries) -> None:
    params, none_yet = libs.matplotlib.rcParams, libs.matplotlib.rcsetup._auto_backend_sentinel
    chosen = dict.get(params, "backend")
    dict.__setitem__(params, "backend", none_yet)
    try:
        LibraryWatch().changed()
        assert dict.get(params, "backend") is none_yet
    finally:
        dict.__setitem__(params, "backend", chosen)


def test_a_module_that_is_imported_later_is_changed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "value, own = 1, __spec__.loader.get_source(__name__)\n"
    (tmp_path / "comes_later.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    def change(module: Any) -> None:
        module.value += 1

    for _ in range(2):  # it is asked for again with each change
        after_import("comes_later", change)
    import comes_later  # type: ignore[import-not-found]

    assert comes_later.value == 2
    assert comes_later.__spec__.loader.get_source("comes_later") == comes_later.own == source
    after_import("comes_later", change)
    assert sys.modules.pop("comes_later").value == 3
