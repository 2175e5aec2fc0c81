"""Models of Keras that cells train one after the other, data-parallel on JAX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed import skip_without
from tests.notebook.kernels import LiveNotebook

skip_without("jax", "keras")

MODELS = """
import datetime, types
import keras, numpy as np
from keras.src.saving import saving_lib

class Later(datetime.datetime):
    hours = 0

    @classmethod
    def now(cls):
        cls.hours += 1
        return cls(2026, 1, 1, cls.hours % 24)

saving_lib.datetime = types.SimpleNamespace(datetime=Later)

class Twice(keras.layers.Layer):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.inner = keras.layers.Dense(units)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return factor * self.inner(x)

    def get_config(self):
        return {**super().get_config(), "units": self.inner.units}

class Net(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.layer = Twice(1)

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x):
        return self.layer(x)

def off(there, here):
    return keras.ops.mean((there - here) ** 2)

factor = 2
x = np.random.default_rng(0).random((64, 3))
model = keras.Sequential([keras.layers.Input((3,)), Twice(1)])
model.compile("adam", off)
other = Net()
other.build((None, 3))
start = model.get_weights()[0].tolist()
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[LiveNotebook]:
    made = LiveNotebook(tmp_path / "keras.ipynb", KERAS_BACKEND="jax")
    made.succeed("%load_ext jupyter_sky")
    yield made
    made.close()


def test_a_model_stays_as_cells_have_trained_it(notebook: LiveNotebook) -> None:
    """It was sent anew with each cell, as Keras writes the time into what it saves."""
    notebook.succeed(MODELS)
    train = notebook.succeed(
        "%%sky --nodes 2 --plugin jax,keras\n"
        "model.fit(x, x.sum(1), epochs=3, verbose=0)\nother(x)\n"
        "trained = model.get_weights()[0].tolist()\ntrained != start"
    )
    assert train.shown[-1] == "True" and not train.stderr
    again = notebook.succeed(
        "%%sky --gather same\nsame = model.get_weights()[0].tolist() == trained"
    )
    assert notebook.value("same") == [True, True], again.stdout
    # A rank that receives or saves one alone waits for no other.
    notebook.succeed("alone = keras.Sequential([keras.layers.Input((3,)), Twice(1)])")
    assert notebook.succeed("%%sky --ranks 0\nalone.layers[0].inner.units").shown == ["1"]
    notebook.succeed("%%sky --out model --out trained --out other\nmodel")
    assert notebook.value("model.get_weights()[0].tolist() == trained != start")
    assert notebook.value("type(other) is Net and type(model.layers[0]) is Twice")
    assert_set_weights_arrive(notebook)


def assert_set_weights_arrive(notebook: LiveNotebook) -> None:
    """Show that weights arrive which the notebook sets, also those that ranks were sent before."""
    notebook.succeed("weights = model.get_weights()")
    for change in (0, 0, 1, 0):
        notebook.succeed(f"weights = [each + {change} for each in weights]")
        notebook.succeed("model.set_weights(weights)")
        here = notebook.value("model.get_weights()[0].tolist()")
        notebook.succeed(
            "%%sky --gather there\nthere = model.get_weights()[0].tolist()\n"
            "_ = model.fit(x, x.sum(1), verbose=0)"
        )
        assert notebook.value("there") == [here] * 2


def test_all_ranks_save_into_one_folder(notebook: LiveNotebook, tmp_path: Path) -> None:
    save = "model.save_weights('a.weights.h5'); model.save('a.keras')"
    notebook.succeed(
        "%%sky --nodes 2 --plugin jax,keras --gather loaded\nimport keras\n"
        "model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])\n"
        f"for _ in range(40): {save}\n"
        "model.load_weights('a.weights.h5')\nloaded = model.get_weights()[0].tolist()"
    )
    first, second = notebook.value("loaded")
    assert first == second
    assert {each.name for each in tmp_path.glob("*a.*")} == {"a.weights.h5", "a.keras"}
    kept = notebook.succeed(
        "%%sky --gather again\nmodel.set_weights([0 * each for each in model.get_weights()])\n"
        "again = keras.saving.load_model('a.keras').get_weights()[0].tolist()"
    )
    assert notebook.value("again") == [first] * 2, kept.stdout


def test_weights_are_set_where_keras_trains_with_torch(tmp_path: Path) -> None:
    notebook = LiveNotebook(tmp_path / "keras.ipynb", KERAS_BACKEND="torch")
    try:
        notebook.succeed("%load_ext jupyter_sky")
        notebook.succeed(MODELS)
        notebook.succeed("%%sky --nodes 2\n_ = model.fit(x, x.sum(1), verbose=0)")
        assert_set_weights_arrive(notebook)
    finally:
        notebook.close()


def test_a_notebook_loads_a_model_with_the_backend_of_the_ranks(tmp_path: Path) -> None:
    """The default is TensorFlow, which is not installed."""
    notebook = LiveNotebook(tmp_path / "keras.ipynb")
    try:
        notebook.succeed("%load_ext jupyter_sky")
        notebook.succeed(
            "%%sky --nodes 1 --plugin torch,keras --out model\nimport keras\n"
            "model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])"
        )
        assert notebook.value("model.output_shape, __import__('keras').backend.backend()") == (
            (None, 4),
            "torch",
        )
        assert notebook.value("__import__('os').environ.get('KERAS_BACKEND')") is None
    finally:
        notebook.close()
