"""The libraries whose settings ranks take over: how to get at these, and what is usual.

No library is imported here: only those are looked at that are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_sky.serialization.process import torch_settings

Settings = Mapping[str, Any]
"""The settings of a library, by their names there; only those that are not as usual."""


@dataclass(frozen=True)
class Library:
    """How to get at the settings of a library.

    Attributes
    ----------
    raw
        Returns what differs as soon as one of them does, quickly.
    unusual
        Returns those that are not as usual.
    usual
        Returns the usual value of a setting.
    change
        Changes a setting.
    """

    raw: Callable[[Any], object]
    unusual: Callable[[Any], Settings]
    usual: Callable[[str], Any]
    change: Callable[[Any, str, Any], None]


# matplotlib: read as a plain dict, which is fast. Read as its own mapping, even copied, it would
# choose a backend if there is none yet, and import `pyplot` for that.

_NOT_OF_PLOTS = ("backend", "interactive", "toolbar", "webagg", "date.", "animation.", "keymap.")
_CYCLE = "axes.prop_cycle"


def _plot_values(matplotlib: Any) -> list[Any]:
    return [value for key, value in dict.items(matplotlib.rcParams) if key != "backend"]


def _plot_settings(matplotlib: Any) -> Settings:
    usual = matplotlib.rcParamsDefault
    found = {
        key: value
        for key, value in dict.items(matplotlib.rcParams)
        if not key.startswith(_NOT_OF_PLOTS) and value != dict.get(usual, key)
    }
    if _CYCLE in found:
        found[_CYCLE] = {key: list(each) for key, each in found[_CYCLE].by_key().items()}
    return found


def _usual_plot_setting(key: str) -> Any:
    usual: Any = dict.get(sys.modules["matplotlib"].rcParamsDefault, key)
    if key != _CYCLE:
        return usual
    return {key: list(each) for key, each in usual.by_key().items()}


def _change_plots(matplotlib: Any, key: str, value: Any) -> None:
    if key == _CYCLE:
        from cycler import cycler

        value = cycler(**value)
    matplotlib.rcParams[key] = value


# pandas


def _options(pandas: Any) -> dict[str, Any]:
    options: dict[str, Any] = vars(sys.modules["pandas._config.config"])["_global_config"]
    return options


def _flat(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if type(value) is dict:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _table_settings(pandas: Any) -> Settings:
    return {
        key: value for key, value in _flat(_options(pandas)) if value != _usual_table_setting(key)
    }


def _usual_table_setting(key: str) -> Any:
    registered = vars(sys.modules["pandas._config.config"])["_registered_options"]
    return registered[key].defval


def _change_tables(pandas: Any, key: str, value: Any) -> None:
    pandas.set_option(key, value)


# numpy

_PRINTING: Settings = {
    "edgeitems": 3,
    "threshold": 1000,
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "floatmode": "maxprec",
    "sign": "-",
}
_ERRORS: Settings = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _array_settings(numpy: Any) -> Settings:
    here = {**numpy.get_printoptions(), **numpy.geterr()}
    usual = {**_PRINTING, **_ERRORS}
    return {key: here[key] for key in usual if here[key] != usual[key]}


def _change_arrays(numpy: Any, key: str, value: Any) -> None:
    change = numpy.seterr if key in _ERRORS else numpy.set_printoptions
    change(**{key: value})


# Python itself

_DEPTH = 1000


def _depth(python: Any) -> Settings:
    deepest = python.getrecursionlimit()
    return {} if deepest == _DEPTH else {"recursionlimit": deepest}


# decimal

_DECIMALS: Settings = {"prec": 28, "rounding": "ROUND_HALF_EVEN"}


def _decimal_settings(decimal: Any) -> Settings:
    context = decimal.getcontext()
    here = {key: getattr(context, key) for key in _DECIMALS}
    return {key: value for key, value in here.items() if value != _DECIMALS[key]}


def _change_decimals(decimal: Any, key: str, value: Any) -> None:
    setattr(decimal.getcontext(), key, value)


# JAX

_JAX: Settings = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_default_prng_impl": "threefry2x32",
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "jax_disable_jit": False,
}


def _jax_settings(jax: Any) -> Settings:
    here = {key: getattr(jax.config, key) for key in _JAX}
    here = {key: getattr(value, "value", value) for key, value in here.items()}  # some are enums
    return {key: value for key, value in here.items() if value != _JAX[key]}


def _change_jax(jax: Any, key: str, value: Any) -> None:
    jax.config.update(key, value)


# Keras

_KERAS: Settings = {"floatx": "float32", "dtype_policy": "float32"}


def _keras_settings(keras: Any) -> Settings:
    here = {"floatx": keras.config.floatx(), "dtype_policy": keras.config.dtype_policy().name}
    return {key: value for key, value in here.items() if value != _KERAS[key]}


def _change_keras(keras: Any, key: str, value: Any) -> None:
    getattr(keras.config, f"set_{key}")(value)


# IPython

_FIGURES: Settings = {
    "figure_formats": ["png"],
    "print_figure_kwargs": {"bbox_inches": "tight"},
    "close_figures": True,
}
_SHELL: Settings = {
    "precision": "",
    "xmode": "Context",
    "interactivity": "last_expr",
    **_FIGURES,
}


def _shell_settings(ipython: Any) -> Settings:
    shell = ipython.get_ipython()
    here = {
        "precision": shell.display_formatter.formatters["text/plain"].float_precision,
        "xmode": shell.InteractiveTB.mode,
        "interactivity": shell.ast_node_interactivity,
        **_figure_settings(shell),
    }
    return {key: value for key, value in here.items() if value != _SHELL[key]}


def _change_shell(ipython: Any, key: str, value: Any) -> None:
    shell = ipython.get_ipython()
    match key:
        case "precision":
            shell.display_formatter.formatters["text/plain"].float_precision = value
        case "xmode":
            shell.InteractiveTB.set_mode(mode=value)
        case "interactivity":
            shell.ast_node_interactivity = value
        case _:
            value = set(value) if key == "figure_formats" else value
            if backend := _figure_backend():
                setattr(backend, key, value)
            else:
                shell.config.InlineBackend[key] = value


def _figure_settings(shell: Any) -> Settings:
    if backend := _figure_backend():
        found = {key: getattr(backend, key) for key in _FIGURES}
    else:
        found = dict(shell.config.get("InlineBackend", {}))
        if "figure_format" in found:
            found["figure_formats"] = {found["figure_format"]}
    if "figure_formats" in found:
        found["figure_formats"] = sorted(found["figure_formats"])
    return {key: value for key, value in found.items() if key in _FIGURES}


def _figure_backend() -> Any:
    """Return what has the settings of figures; before the first one, only the shell has some."""
    module = sys.modules.get("matplotlib_inline.config")
    made = module and module.InlineBackend.initialized()
    return module.InlineBackend.instance() if module and made else None


# scikit-learn


def _estimator_settings(sklearn: Any) -> Settings:
    usual = _usual_of_estimators()
    return {key: value for key, value in sklearn.get_config().items() if value != usual[key]}


def _usual_of_estimators() -> Settings:
    # Each thread has a copy, which is what a notebook changes.
    usual: Settings = vars(sys.modules["sklearn._config"])["_global_config"]
    return usual


# plotly


def _plotly_settings(plotly: Any) -> Settings:
    # A rank would choose another renderer than a kernel does, with four megabytes of JavaScript.
    return {"renderers": plotly.renderers.default, "templates": plotly.templates.default}


def _change_plotly(plotly: Any, key: str, value: Any) -> None:
    getattr(plotly, key).default = value


LIBRARIES: Mapping[str, Library] = {
    "matplotlib": Library(
        _plot_values,
        _plot_settings,
        _usual_plot_setting,
        _change_plots,
    ),
    "pandas": Library(_options, _table_settings, _usual_table_setting, _change_tables),
    "numpy": Library(
        lambda module: (module.get_printoptions(), module.geterr()),
        _array_settings,
        lambda key: {**_PRINTING, **_ERRORS}[key],
        _change_arrays,
    ),
    "decimal": Library(
        _decimal_settings, _decimal_settings, _DECIMALS.__getitem__, _change_decimals
    ),
    "sys": Library(
        _depth,
        _depth,
        lambda key: _DEPTH,
        lambda python, key, value: python.setrecursionlimit(value),
    ),
    "IPython": Library(_shell_settings, _shell_settings, _SHELL.__getitem__, _change_shell),
    "plotly.io": Library(_plotly_settings, _plotly_settings, str, _change_plotly),
    "sklearn": Library(
        lambda module: module.get_config(),
        _estimator_settings,
        lambda key: _usual_of_estimators()[key],
        lambda module, key, value: module.set_config(**{key: value}),
    ),
    "jax": Library(_jax_settings, _jax_settings, _JAX.__getitem__, _change_jax),
    "keras": Library(_keras_settings, _keras_settings, _KERAS.__getitem__, _change_keras),
    "torch": Library(
        torch_settings.unusual,
        torch_settings.unusual,
        torch_settings.USUAL.__getitem__,
        torch_settings.change,
    ),
}
