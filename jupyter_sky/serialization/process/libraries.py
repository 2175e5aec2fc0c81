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
"""Settings of a library, by their names there."""


@dataclass(frozen=True)
class Library:
    """How to get at the settings of a library; each function is given its module.

    Attributes
    ----------
    values
        Returns the settings, by their names.
    usual
        Returns what they usually are.
    change
        Changes a setting.
    raw
        Returns, more quickly than ``values``, what differs as soon as one of them does.
    ahead
        Returns those that this process would give it when importing it, and a rank would not.
    """

    values: Callable[[Any], Settings]
    usual: Callable[[Any], Settings]
    change: Callable[[Any, str, Any], None]
    raw: Callable[[Any], object] | None = None
    ahead: Callable[[], Settings] | None = None


# matplotlib: read as a plain dict, which is fast. Read as its own mapping, even copied, it would
# choose a backend if there is none yet, and import `pyplot` for that.

_NOT_OF_PLOTS = ("backend", "interactive", "toolbar", "webagg", "date.", "animation.", "keymap.")
_CYCLE = "axes.prop_cycle"


def _plots(parameters: dict[str, Any]) -> Settings:
    found = {
        key: value for key, value in dict.items(parameters) if not key.startswith(_NOT_OF_PLOTS)
    }
    found[_CYCLE] = {key: list(each) for key, each in found[_CYCLE].by_key().items()}
    return found


def _raw_plots(matplotlib: Any) -> list[Any]:
    return [value for key, value in dict.items(matplotlib.rcParams) if key != "backend"]


def _change_plots(matplotlib: Any, key: str, value: Any) -> None:
    if key == _CYCLE:
        from cycler import cycler

        value = cycler(**value)
    matplotlib.rcParams[key] = value


# pandas: it takes a rank for a terminal, in which the columns of a table have to fit side by side.

_COLUMNS = "display.max_columns"


def _tables_in_notebooks() -> Settings:
    ipython = sys.modules.get("IPython")
    return {_COLUMNS: 20} if ipython and hasattr(ipython.get_ipython(), "kernel") else {}


def _options(pandas: Any) -> dict[str, Any]:
    options: dict[str, Any] = vars(sys.modules["pandas._config.config"])["_global_config"]
    return options


def _flat(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if type(value) is dict:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _usual_tables(pandas: Any) -> Settings:
    registered = vars(sys.modules["pandas._config.config"])["_registered_options"]
    return {key: option.defval for key, option in registered.items()} | {_COLUMNS: 0}


def _change_tables(pandas: Any, key: str, value: Any) -> None:
    pandas.set_option(key, value)


# numpy

_ERRORS: Settings = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_ARRAYS: Settings = {
    "edgeitems": 3,
    "threshold": 1000,
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "floatmode": "maxprec",
    "sign": "-",
    **_ERRORS,
}


def _arrays(numpy: Any) -> Settings:
    here = {**numpy.get_printoptions(), **numpy.geterr()}
    return {key: here[key] for key in _ARRAYS}


def _change_arrays(numpy: Any, key: str, value: Any) -> None:
    change = numpy.seterr if key in _ERRORS else numpy.set_printoptions
    change(**{key: value})


# decimal

_DECIMALS: Settings = {"prec": 28, "rounding": "ROUND_HALF_EVEN"}


def _decimals(decimal: Any) -> Settings:
    context = decimal.getcontext()
    return {key: getattr(context, key) for key in _DECIMALS}


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


def _jax(jax: Any) -> Settings:
    here = {key: getattr(jax.config, key) for key in _JAX}
    return {key: getattr(value, "value", value) for key, value in here.items()}  # some are enums


def _change_jax(jax: Any, key: str, value: Any) -> None:
    jax.config.update(key, value)


# Keras

_KERAS: Settings = {"floatx": "float32", "dtype_policy": "float32"}


def _keras(keras: Any) -> Settings:
    return {"floatx": keras.config.floatx(), "dtype_policy": keras.config.dtype_policy().name}


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


def _shell(ipython: Any) -> Settings:
    shell = ipython.get_ipython()
    return {
        "precision": shell.display_formatter.formatters["text/plain"].float_precision,
        "xmode": shell.InteractiveTB.mode,
        "interactivity": shell.ast_node_interactivity,
        **_figures(shell),
    }


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


def _figures(shell: Any) -> Settings:
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


# plotly: always sent, or a rank would choose another renderer, with four megabytes of JavaScript.

_PLOTLY: Settings = {"renderers": None, "templates": None}


def _plotly(plotly: Any) -> Settings:
    return {"renderers": plotly.renderers.default, "templates": plotly.templates.default}


def _change_plotly(plotly: Any, key: str, value: Any) -> None:
    getattr(plotly, key).default = value


LIBRARIES: Mapping[str, Library] = {
    "matplotlib": Library(
        lambda matplotlib: _plots(matplotlib.rcParams),
        lambda matplotlib: _plots(matplotlib.rcParamsDefault),
        _change_plots,
        _raw_plots,
    ),
    "pandas": Library(
        lambda pandas: dict(_flat(_options(pandas))),
        _usual_tables,
        _change_tables,
        _options,
        _tables_in_notebooks,
    ),
    "numpy": Library(_arrays, lambda numpy: _ARRAYS, _change_arrays),
    "decimal": Library(_decimals, lambda decimal: _DECIMALS, _change_decimals),
    "sys": Library(
        lambda python: {"recursionlimit": python.getrecursionlimit()},
        lambda python: {"recursionlimit": 1000},
        lambda python, key, value: python.setrecursionlimit(value),
    ),
    "IPython": Library(_shell, lambda ipython: _SHELL, _change_shell),
    "plotly.io": Library(_plotly, lambda plotly: _PLOTLY, _change_plotly),
    "sklearn": Library(
        lambda sklearn: sklearn.get_config(),
        # Each thread has a copy of this, which is what a notebook changes.
        lambda sklearn: vars(sys.modules["sklearn._config"])["_global_config"],
        lambda sklearn, key, value: sklearn.set_config(**{key: value}),
    ),
    "jax": Library(_jax, lambda jax: _JAX, _change_jax),
    "keras": Library(_keras, lambda keras: _KERAS, _change_keras),
    "torch": Library(
        torch_settings.values, lambda torch: torch_settings.USUAL, torch_settings.change
    ),
}
