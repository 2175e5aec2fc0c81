"""Values travel whole, unchanged ones to the same bytes, and functions without their globals."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import functools
import gc
import importlib
import logging
import os
import pickle
import queue
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jupyter_sky.errors import UsageError
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.serialization.pickling import dump, load
from jupyter_sky.serialization.reducers import functions

if TYPE_CHECKING:
    import pandas as pd
    import torch


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import what takes long where these tests run, not in each process that only lists them."""
    globals().update(torch=importlib.import_module("torch"), pd=importlib.import_module("pandas"))


def test_a_large_value_is_let_go_without_the_garbage_collector() -> None:
    value = np.zeros(1_000_000)
    there = weakref.ref(value)
    gc.disable()
    try:
        pickled = dump((0, value), "x")
        assert len(pickled.buffers) == 1
        del value, pickled
        assert there() is None
    finally:
        gc.enable()


def trip(value: Any) -> Any:
    pickled = dump(value)
    return load(pickled.stream, map(bytearray, pickled.buffers))


def digest(value: Any, **options: Any) -> str:
    return blobs.content(blobs.pack(dump(value, **options))[0])


# Tensors and arrays

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "float": lambda: torch.arange(6.0).reshape(2, 3),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16) * 1.5,
    "complex": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "bool": lambda: torch.tensor([True, False]),
    "empty": lambda: torch.empty(0, 3),
    "of no dimension": lambda: torch.tensor(3.5),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "every second": lambda: torch.arange(10)[1::2],
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "wants gradients": lambda: torch.ones(3, requires_grad=True),
    "computed": lambda: torch.ones(3, requires_grad=True) * 2,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "large": lambda: torch.arange(100_000),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    copy = trip(tensor)
    assert copy.dtype == tensor.dtype
    assert copy.layout == tensor.layout
    assert copy.shape == tensor.shape
    assert copy.requires_grad == tensor.requires_grad
    assert copy.is_conj() == tensor.is_conj()
    if tensor.layout == torch.strided:
        assert copy.stride() == tensor.stride()
    dense = (each.dequantize() if each.is_quantized else each for each in (copy, tensor))
    assert torch.equal(
        *(each.to_dense() if each.layout != torch.strided else each for each in dense)
    )


def test_a_tensor_that_arrived_can_be_written_to() -> None:
    copy = trip(torch.zeros(100_000))
    copy += 1
    assert copy.sum() == 100_000


def test_tensors_go_on_sharing_memory() -> None:
    whole = torch.zeros(4, 4)
    whole, row, flat = trip([whole, whole[1], whole.view(16)])
    row += 1
    assert whole[1].tolist() == [1.0] * 4
    assert flat[4] == 1


def test_tied_weights_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    copy = trip(model)
    assert copy[1].weight is copy[0].weight
    assert isinstance(copy[0].weight, torch.nn.Parameter)
    assert len(list(copy.parameters())) == 1


def test_an_optimizer_and_its_model_stay_together() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model, optimizer = trip([model, optimizer])
    before = model.weight.clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    assert optimizer.state[model.weight]["step"] == 2


def test_a_model_that_is_wrapped_for_a_group_travels_without_it() -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = torch.nn.Linear(2, 1)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        copy, again = trip({"model": wrapped, "inner": model}).values()
    finally:
        torch.distributed.destroy_process_group()
    assert type(copy) is torch.nn.Linear
    assert again is copy
    assert torch.equal(copy.weight, model.weight)


ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "structured": lambda: np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "of objects": lambda: np.array([1, "a", None, [2]], dtype=object),
    "in columns": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
    "every second": lambda: np.arange(10)[::2],
    "empty": lambda: np.empty((0, 3)),
    "dates": lambda: np.array(["2024-01-01"], dtype="M8[D]"),
    "texts": lambda: np.array(["a", "longer"]),
    "masked": lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "large": lambda: np.arange(100_000),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays(make: Callable[[], np.ndarray]) -> None:
    array = make()
    copy = trip(array)
    assert type(copy) is type(array)
    assert copy.dtype == array.dtype
    assert copy.tolist() == array.tolist()


@pytest.mark.parametrize("writeable", [True, False])
def test_an_array_stays_as_writeable_as_it_was(writeable: bool) -> None:
    array = np.arange(100_000)
    array.flags.writeable = writeable
    assert trip(array).flags.writeable is writeable


def test_large_arrays_stay_out_of_the_pickle() -> None:
    array = np.arange(1_000_000)
    pickled = dump({"array": array, "tensor": torch.from_numpy(array)})
    assert len(pickled.stream) < 10_000
    assert sum(each.nbytes for each in pickled.buffers) == 2 * array.nbytes
    assert all(np.shares_memory(np.frombuffer(each, "i8"), array) for each in pickled.buffers)


FRAMES: dict[str, Callable[[], Any]] = {
    "mixed": lambda: pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, 1.5]}),
    "dates": lambda: pd.DataFrame({"a": [1, 2]}, index=pd.date_range("2024", periods=2, tz="UTC")),
    "levels": lambda: pd.DataFrame({"a": range(4)}, pd.MultiIndex.from_product([[1, 2], [3, 4]])),
    "categories": lambda: pd.Series(list("aba"), dtype="category"),
    "periods": lambda: pd.Series(range(3), pd.period_range("2024", periods=3, freq="M")),
    "differences": lambda: pd.Series(pd.timedelta_range("1h", periods=3)),
    "nullable": lambda: pd.Series([1, None], dtype="Int64"),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
def test_data_frames(make: Callable[[], Any]) -> None:
    value = make()
    test = pd.testing.assert_frame_equal if value.ndim == 2 else pd.testing.assert_series_equal
    test(trip(value), value)


def test_bytes_of_fifty_megabytes() -> None:
    data = bytes(50_000_000)
    assert trip(data) == data
    assert digest(data) == digest(data)


OTHERS = [
    collections.OrderedDict(b=1, a=2),
    collections.Counter("abca"),
    collections.deque([1, 2], maxlen=3),
    datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    decimal.Decimal("1.5"),
    frozenset({"a", "b"}),
    Path("a/b"),
    range(3),
    {1, (2, 3)},
    {"k": 1}.keys() and {"k": {1: [2]}},
    types.SimpleNamespace(a=1),
]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_other_values(value: Any) -> None:
    assert trip(value) == value
    assert digest(value) == digest(value)


def test_a_parser_of_arguments_leaves_out_what_it_left_out() -> None:
    parser = argparse.ArgumentParser("train")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--debug", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    copy = trip(trip(parser))
    assert copy.parse_args([]) == parser.parse_args([]) == argparse.Namespace(rate=0.1)
    assert copy.parse_args(["--debug", "1"]).debug == "1"
    assert copy.format_help() == parser.format_help()


# Unchanged is unchanged


def looked_at(frame: pd.DataFrame) -> None:
    repr(frame)
    frame.describe()
    frame.to_numpy()
    frame.mean(numeric_only=True)
    frame.loc[frame.index[0]]
    assert frame.index.is_unique and frame.columns.is_unique


def of_dates(frame: pd.DataFrame) -> None:
    looked_at(frame)
    frame.loc["2024-01-02"]
    frame.resample("2D").sum(numeric_only=True)
    assert frame.index.month[0] == 1
    assert frame["t"].dt.year.iloc[0] == 2024


def columns_one_by_one() -> pd.DataFrame:
    frame = pd.DataFrame({"a": range(10), "b": np.arange(10.0)})
    for name in "cdef":
        frame[name] = 1.0
    return frame


def trained(model: torch.nn.Module) -> None:
    model(torch.zeros(1, 4)).sum().backward()
    model.zero_grad()
    repr(model)
    model.state_dict()


def recurrent(model: torch.nn.Module) -> None:
    model.flatten_parameters()
    model(torch.zeros(2, 1, 4))


def raised() -> Exception:
    try:
        raise ValueError("x")
    except ValueError as error:
        return error


def figure() -> Any:
    made = importlib.import_module("matplotlib.figure").Figure()
    made.subplots().plot([1, 2])
    return made


def data_set() -> Any:
    arrays = importlib.import_module("xarray")
    return arrays.Dataset({"v": (("i", "j"), np.ones((2, 3)))}, coords={"i": [1, 2]})


def cached(n: int) -> int:
    return n


NOT_CHANGED: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "an array": (lambda: np.arange(10), lambda each: (each.sum(), each.T, hash(each.tobytes()))),
    "a masked array": (lambda: np.ma.array([1, 2], mask=[0, 1]), lambda each: each.filled()),
    "a frame": (columns_one_by_one, looked_at),
    "a frame by dates": (
        lambda: pd.DataFrame(
            {"a": range(3), "t": pd.date_range("2024", periods=3)},
            index=pd.date_range("2024", periods=3),
        ),
        of_dates,
    ),
    "a frame by names": (
        lambda: pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).set_index("b"),
        lambda frame: (
            looked_at(frame),
            frame.loc["x"],
            frame.groupby("b").sum(),
            frame.join(frame, rsuffix="_"),
        ),
    ),
    "categories": (FRAMES["categories"], lambda each: (each.cat.codes, each.value_counts())),
    "periods": (FRAMES["periods"], lambda each: (each.index.freqstr, each.index.year, repr(each))),
    "a tensor": (
        lambda: torch.arange(4.0),
        lambda each: (each.numpy(), each.view(2, 2), repr(each)),
    ),
    "a parameter": (
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda each: (each.sum().backward(), each.grad),
    ),
    "a model": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1)
        ),
        trained,
    ),
    "a recurrent model": (lambda: torch.nn.LSTM(4, 4), recurrent),
    "attention": (
        lambda: torch.nn.TransformerEncoderLayer(4, 2, batch_first=True).eval(),
        lambda each: each(torch.zeros(1, 2, 4)),
    ),
    "an optimizer": (
        lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1),
        lambda each: (
            (
                each.zero_grad(),
                repr(each),
                each.state_dict(),
                torch.optim.lr_scheduler.StepLR(each, 1),
            )
            and each.param_groups[0].pop("initial_lr")
        ),
    ),
    "a loader": (
        lambda: torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, shuffle=True),
        lambda each: (list(each), len(each)),
    ),
    "an error": (lambda: ValueError("x"), lambda each: (repr(each), vars(each))),
    "an error that was raised": (raised, lambda each: each.__traceback__),
    "a partial": (lambda: functools.partial(int, base=2), lambda each: (each("1"), vars(each))),
    "a path": (
        lambda: Path("a/b.c"),
        lambda each: (str(each), hash(each), each.suffix, each.parts),
    ),
    "a set": (lambda: {"a", "b", "c"}, lambda each: (sorted(each), "a" in each)),
    "texts": (
        lambda: {"".join(["ab", "c"]): "".join(["ab", "c"]), "k": ["".join(["ab", "c"])] * 2},
        lambda each: (types.SimpleNamespace(**each), [setattr(Bag(), key, 1) for key in each]),
    ),
    "a named tuple": (lambda: Point(1, 2), lambda each: (each._asdict(), hash(each))),
    "a logger": (lambda: logging.getLogger("x"), lambda each: each.isEnabledFor(10)),
    "a figure": (figure, lambda each: (each.axes, each.get_label())),
    "a data set": (data_set, lambda each: (repr(each), each.v.mean(), each.attrs, each.sel(i=1))),
    "a generator of numbers": (lambda: np.random.default_rng(0), lambda each: each.bit_generator),
}


class Bag:
    pass


class Point(collections.namedtuple("Point", "x y")):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "look"), NOT_CHANGED.values(), ids=NOT_CHANGED)
def test_what_is_only_looked_at_is_unchanged(
    make: Callable[[], Any], look: Callable[[Any], object]
) -> None:
    value = make()
    before = digest(value)
    assert isinstance(dump(value).shared, dict)  # looks for what other names may have too
    assert digest(value) == before
    look(value)
    assert digest(value) == before


CELL = """
import abc, dataclasses, enum, functools, typing

def helper(x): return x + offset
def plain(x): return helper(x)

class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...

class Derived(Base):
    seen = []
    def f(self): return super().f
    @classmethod
    def make(cls): return cls()
    @functools.cached_property
    def costly(self): return 3

@dataclasses.dataclass
class Data:
    x: int = 1
    y: list = dataclasses.field(default_factory=list)

class Colour(enum.Enum):
    RED = 1

T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def get(self) -> T: ...

offset = 1
data = Data()
derived = Derived()
"""

USED: dict[str, Callable[[dict[str, Any]], object]] = {
    "plain": lambda main: [main["plain"](1) for _ in range(100)],
    "Derived": lambda main: (isinstance(1, main["Base"]), main["Derived"].make().f),
    "Base": lambda main: isinstance(main["Derived"](), main["Base"]),
    "derived": lambda main: main["derived"].costly,
    "Data": lambda main: (repr(main["Data"]()), main["Data"]() == main["Data"]()),
    "data": lambda main: (repr(main["data"]), main["data"] == main["data"]),
    "Colour": lambda main: (main["Colour"](1), list(main["Colour"])),
    "Box": lambda main: (main["Box"][int], main["Box"]().get()),
}


@pytest.mark.parametrize("name", USED)
def test_what_is_only_used_is_unchanged(notebook: Any, name: str) -> None:
    main = notebook(CELL)
    before = digest(main[name], classes_by_value=(), without_caches=True)
    USED[name](main)
    assert digest(main[name], classes_by_value=(), without_caches=True) == before


class OfAModule:
    @functools.cached_property
    def costly(self) -> int:
        return 3


def test_what_an_object_of_a_module_has_computed_is_no_change() -> None:
    value = OfAModule()
    before = digest(value, classes_by_value=(), without_caches=True)
    assert value.costly == 3
    assert digest(value, classes_by_value=(), without_caches=True) == before
    assert load(dump(value).stream).__dict__ == {"costly": 3}


def test_an_object_is_unchanged_when_its_class_is_not(notebook: Any) -> None:
    main = notebook("class Net:\n  count = 0\n\nnet = Net()")
    before = digest(main["net"], classes_by_value=(), without_caches=True)
    main["Net"].count += 1
    main["Net"].forward = lambda self: 1
    assert digest(main["net"], classes_by_value=(), without_caches=True) == before
    main["net"].width = 3
    assert digest(main["net"], classes_by_value=(), without_caches=True) != before


# Functions


def test_a_function_uses_the_names_of_where_it_is(notebook: Any, elsewhere: Any) -> None:
    pickled = dump(notebook("y = 1\ndef f(x): return g(x) + y\ndef g(x): return x")["f"])
    assert pickled.needs == {"g", "y"}
    f = elsewhere.load(pickled)
    vars(elsewhere.main).update(g=lambda x: 10 * x, y=2)
    assert f(1) == 12
    elsewhere.main.y = 3
    assert f(1) == 13


FUNCTIONS = {
    "def f(n): return n * f(n - 1) if n else 1": "f(5) == 120",
    "def even(n): return not n or odd(n - 1)\ndef odd(n): return n and even(n - 1)": "even(4)",
    "def make():\n  def f(n): return n * f(n - 1) if n else 1\n  return f\nf = make()": (
        "f(5) == 120"
    ),
    "f = lambda *a, k=2, **kw: (a, k, kw)": "f(1, z=3) == ((1,), 2, {'z': 3})",
    "def f(a, /, b=[], *, c): return a, b, c": "f(1, c=2) == (1, [], 2)",
    "def g(n):\n  for i in range(n): yield i": "list(g(3)) == [0, 1, 2]",
    "async def f(): return 1": "__import__('asyncio').run(f()) == 1",
    "import functools\nadd = functools.partial(lambda a, b: a + b, 1)": "add(2) == 3",
    "class A:\n  def f(self): return 1\nf = A().f": "f() == 1",
    "import functools\n@functools.cache\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)": (
        "f(30) == 832040 and f.cache_info().misses == 31"
    ),
    "import functools\n@functools.singledispatch\ndef f(x): return 0\n"
    "@f.register\ndef _(x: int): return 1": "f(1) == 1 and f('') == 0",
    "import contextlib\n@contextlib.contextmanager\ndef f(): yield 1": "f().__enter__() == 1",
    "def twice(f):\n  def g(*a): return f(f(*a))\n  return g\n@twice\ndef f(x): return x + 1": (
        "f(1) == 3"
    ),
    "def f(x: int = 1) -> 'str':\n  'Doc.'\n  return x\nf.tag = [1]": (
        "f.__doc__ == 'Doc.' and f.tag == [1] and f.__annotations__ == {'x': int, 'return': 'str'}"
    ),
}


@pytest.mark.parametrize("cell", FUNCTIONS)
def test_functions(notebook: Any, elsewhere: Any, cell: str) -> None:
    main = notebook(cell)
    for name in [name for name in main if not name.startswith("_")]:
        setattr(elsewhere.main, name, elsewhere.load(dump(main[name])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", elsewhere.main)
        assert eval(FUNCTIONS[cell], vars(elsewhere.main))


def test_a_function_with_other_annotations_is_another_one(notebook: Any, elsewhere: Any) -> None:
    """`torch.jit.script` and others keep what they have made of a function for it."""
    cell, loaded = "def f(x: {}):\n  return x", list[Any]()
    for kind in ("int", "int", "float", "float"):
        elsewhere.main.f = elsewhere.load(dump(notebook(cell.format(kind))["f"]))
        loaded.append(elsewhere.main.f)
    assert [each.__annotations__["x"] for each in loaded] == [int, int, float, float]
    first, again, other, last = loaded
    assert first is again is not other is last


def test_a_function_stays_the_same_where_a_set_is_written_in_another_order(
    notebook: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = "from typing import Annotated\ndef f(x: Annotated[str, {'a', 'b'}]):\n  return x"
    sent = dump(notebook(cell)["f"])
    describe = functions._described
    monkeypatch.setattr(functions, "_described", lambda function: f"here: {describe(function)}")
    elsewhere.main.f = elsewhere.load(sent)
    assert elsewhere.load(sent) is elsewhere.main.f
    elsewhere.main.f.__defaults__ = ("changed here",)
    assert elsewhere.load(sent).__defaults__ is None


def test_functions_go_on_sharing_a_variable(notebook: Any, elsewhere: Any) -> None:
    cell = """
def make():
    n = 0
    def add():
        nonlocal n
        n += 1
    return add, lambda: n
pair = make()
"""
    add, get = elsewhere.load(dump(notebook(cell)["pair"]))
    add()
    add()
    assert get() == 2


def test_a_function_uses_the_names_in_its_queries(notebook: Any) -> None:
    cell = "def f(df, k):\n  df.pop('@no')\n  return lambda: df.query(f'a > @b and c in @k')"
    assert dump(notebook(cell)["f"]).needs == {"b"}
    assert dump(notebook("def g(df): return df.loc['@b']")["g"]).needs == frozenset()
    cell = (
        "def h(a):\n  import pandas as pd\n"
        "  return pd.eval('a + b'), duckdb.sql('select d from c'), df.eval('e')"
    )
    assert dump(notebook(cell)["h"]).needs == {"b", "c", "df", "duckdb"}
    assert dump(notebook("def i(): return eval('LR + 1')")["i"]).needs == {"LR", "eval"}
    cell = "def k():\n  'Take batches from loader.'\n  pl.seed_everything(1)\n  model.eval()"
    assert dump(notebook(cell)["k"]).needs == {"pl", "model"}
    cell = "def j(con): return con.sql('select d from x, y u')"
    assert dump(notebook(cell)["j"]).needs == {"x", "y"}
    for query in ("-- all\nselect 1 from x", "explain analyze from x", "(from x) union from x"):
        cell = f"def k(): return duckdb.sql({query!r})"
        assert dump(notebook(cell)["k"]).needs == {"x", "duckdb"}


def test_a_function_uses_the_names_of_the_classes_that_it_makes(notebook: Any) -> None:
    cell = (
        "def make(width):\n"
        "  class Net(Base):\n"
        "    lr, rate = LR, width\n"
        "    LR = rate\n"
        "    twice = 2 * lr\n"
        "    class Inner:\n      size, LR = SIZE, LR\n"
        "    def f(self): return g(self.own, __name__)\n"
        "    own = property(f)\n"
        "  return Net"
    )
    builtin = {"property", "__name__"}
    assert dump(notebook(cell)["make"]).needs - builtin == {"Base", "LR", "SIZE", "g"}
    assert dump(notebook("def h():\n  class C: x = 1; y = x")["h"]).needs == set()


def test_a_function_of_a_module_is_imported() -> None:
    pickled = dump([functools.reduce, Path, json_dumps := __import__("json").dumps])
    assert pickled.needs == frozenset()
    assert {Path.__module__, "json"} <= pickled.modules
    assert load(pickled.stream)[2] is json_dumps


# Classes


CLASSES = {
    "class A:\n  def f(self): return 1\nclass B(A):\n  def f(self): return super().f() + 1": (
        "B().f() == 2 and isinstance(B(), A)"
    ),
    "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass D:\n  x: int = 1": (
        "D() == D(1) and D(2).x == 2 and not hasattr(D(), '__dict__')"
    ),
    "import dataclasses\n@dataclasses.dataclass\nclass D:\n  a: int\n  _: dataclasses.KW_ONLY\n"
    "  b: int = 2": (
        "(S := dataclasses.make_dataclass('S', [('c', int, 3)], bases=(D,)))(a=1).b == 2"
        " and [each.default for each in dataclasses.fields(S)] == [dataclasses.MISSING, 2, 3]"
        " and D.__annotations__['_'] is dataclasses.KW_ONLY"
    ),
    "import enum\nclass E(enum.Enum):\n  A = 1\n  def f(self): return self.value": (
        "E(1) is E.A and E.A.f() == 1"
    ),
    "import enum\nclass F(enum.Flag):\n  A = 1\n  B = 2": "F.A | F.B == F(3)",
    "import typing\nclass N(typing.NamedTuple):\n  a: int\n  b: str = 'x'": "N(1).b == 'x'",
    "class M(type):\n  def __call__(cls): return 1\nclass A(metaclass=M): pass": "A() == 1",
    "class A:\n  @classmethod\n  def c(cls): return cls\n  @staticmethod\n  def s(): return 2\n"
    "  @property\n  def p(self): return 3": "A.c() is A and A.s() == 2 and A().p == 3",
    "import functools\nclass A:\n  @functools.cached_property\n  def p(self): return [1]": (
        "(a := A()).p is a.p"
    ),
    "class A:\n  def me(self): return A\nclass B(A): pass": "B().me() is A",
    "class E(ValueError):\n  def __init__(self, code): self.code = code": "E(3).code == 3",
    "class Outer:\n  class Inner: x = 1": "Outer.Inner.x == 1",
    "from typing import *\nT = TypeVar('T')\nclass G(Generic[T]):\n  def f(self) -> T: return 1": (
        "G[int]().f() == 1"
    ),
    "class A:\n  def __init_subclass__(cls, kind): cls.kind = kind\nclass B(A, kind='b'): pass": (
        "B.kind == 'b' and 'B' in str(A.__subclasses__())"
    ),
    "import enum\nclass A(enum.Enum):\n  def __init_subclass__(cls, kind): cls.kind = kind\n"
    "class C(A, kind='c'):\n  B = 'b'": "C.kind == 'c' and C('b') is C.B",
    "class A:\n  def __init_subclass__(cls): cls.twice = 2 * cls.size\nclass B(A): size = 2": (
        "B.twice == 4"
    ),
    "import typing\nclass A:\n  x: int = 1\nclass T(typing.TypedDict):\n  k: A": (
        "A.__annotations__ == {'x': int} and typing.get_type_hints(T) == {'k': A}"
    ),
}
if sys.version_info >= (3, 12):
    CLASSES["type Name = int | list[str]\nclass A[T]: pass\ndef f[T](x: T) -> Name: return x"] = (
        "Name.__value__ == int | list[str] and Name.__module__ == '__main__' and f(A()) is not None"
    )
if sys.version_info >= (3, 14):
    CLASSES[
        "class A:\n  x: Later\ndef f(x: Later): return x\n"
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n  x: Later = 1"
    ] = "f(D()).x == 1 and A.__annotations__ == f.__annotations__ == {'x': 'Later'}"


@pytest.mark.parametrize("cell", CLASSES)
def test_classes(notebook: Any, elsewhere: Any, cell: str) -> None:
    main = notebook(cell)
    for name in [name for name in main if not name.startswith("_")]:
        setattr(elsewhere.main, name, elsewhere.load(dump(main[name])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", elsewhere.main)
        assert eval(CLASSES[cell], vars(elsewhere.main))


def test_a_class_is_one_class_however_often_it_travels(notebook: Any, elsewhere: Any) -> None:
    main = notebook("class A: pass\na = A()")
    first, kind = elsewhere.load(dump(main["a"])), elsewhere.load(dump(main["A"]))
    assert type(first) is kind
    assert isinstance(elsewhere.load(dump(main["A"]())), kind)


def test_a_class_comes_back_as_itself(notebook: Any) -> None:
    main = notebook("class A: pass\na = A()")
    assert type(trip(main["a"])) is main["A"]


def test_a_class_that_is_defined_anew_without_a_change_stays_the_class(
    notebook: Any, elsewhere: Any
) -> None:
    cell = "class A:\n  def f(self): return 1"
    old = elsewhere.load(dump(notebook(cell)["A"]()))
    kind = elsewhere.load(dump(notebook(cell)["A"]))
    assert isinstance(old, kind)
    changed = elsewhere.load(dump(notebook(cell.replace("1", "2"))["A"]))
    assert changed is not kind
    assert (old.f(), changed().f()) == (1, 2)


def test_the_same_class_of_two_processes_is_one(notebook: Any, elsewhere: Any) -> None:
    names = [pickling.class_identity(notebook("class A:\n  x = 1")["A"]) for _ in range(2)]
    assert len(set(names)) == 1
    other = pickling.class_identity(notebook("class A:\n  x = 2")["A"])
    assert other not in names


SETS = """
from jupyter_sky.serialization.pickling import class_identity
class A:
    names = {"alpha", "beta", "gamma", "delta"}
    def f(self, x): return x in {"north", "east", "south", "west", ("n", frozenset("nesw"))}
A.names.add(A)  # which comes by its name
print(class_identity(A))
"""


def test_the_order_of_sets_is_no_part_of_a_class() -> None:
    seen = set()
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SETS]
        seen.add(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)
    assert len(seen) == 1


def test_classes_that_a_function_makes_are_different(notebook: Any) -> None:
    main = notebook("def make():\n  class A: pass\n  return A\nA, B = make(), make()")
    assert pickling.class_identity(main["A"]) != pickling.class_identity(main["B"])


# What is shared


def shared_between(one: Any, other: Any) -> bool:
    first, second = dump(one), dump(other)
    return bool(first.shared.keys() & second.shared.keys())


class Leaf:
    def __init__(self, parent: Any) -> None:
        self.parent, self.find = weakref.ref(parent), weakref.WeakMethod(parent.leaf)


class Tree:
    def __init__(self) -> None:
        self.child = Leaf(self)

    def leaf(self) -> Leaf:
        return self.child


def test_weak_references_stay_weak() -> None:
    copy = trip(Tree())
    assert copy.child.parent() is copy
    assert copy.child.find()() is copy.child
    assert trip(copy.child).parent() is None  # nothing else refers to it
    assert trip(weakref.ref(Tree()))() is None


def test_what_is_shared_is_seen() -> None:
    numbers = [1]
    assert shared_between({"a": numbers}, [numbers])
    model, tensor, bag = torch.nn.Linear(2, 2), torch.zeros(4), Bag()
    assert shared_between(model, torch.optim.SGD(model.parameters()))
    assert shared_between(tensor, tensor[1:])
    assert shared_between(bag, (bag,))
    assert not shared_between({"a": [1]}, {"a": [1]})
    assert not shared_between(Path("a"), [Path("a"), len, Bag])


def test_of_bulk_data_only_the_whole_is_looked_for() -> None:
    many = [[] for _ in range(200_000)]
    assert dump(many).shared.keys() == {id(many)}


# What cannot be pickled


class Config:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Hides:
    """Says itself what it is pickled with."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = {"db": sqlite3.connect(":memory:")}

    def __getstate__(self) -> dict[str, Any]:
        return {"inside": self.inside}


class Slots:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Keeper:
    def __init__(self) -> None:
        self.handlers = [logging.StreamHandler()]


def with_closure() -> Callable[[], None]:
    lock = threading.Lock()

    def work() -> None:
        with lock:
            pass

    return work


def itself() -> Config:
    config = Config()
    config.me = config
    config.lock = threading.Lock()
    return config


def hooked() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].guard = threading.Lock()
    return model


def numbers() -> Any:
    yield 1


OBSTACLES: dict[str, Callable[[Path], Any]] = {
    "it.logger.handlers[0].lock: a lock. Create it": lambda tmp: Config(logger=Keeper()),
    "it['q'].mutex: a lock. Create it inside the cell, or set it['q'] to None": lambda tmp: {
        "q": queue.Queue()
    },
    "it['log'][0]: a lock": lambda tmp: {"log": [threading.Lock()]},
    "it: an open file. Open it": lambda tmp: (tmp / "x").open("w"),
    "it.log: an open file": lambda tmp: Config(log=(tmp / "x").open("ab")),
    "it.g.log: an open file": lambda tmp: Config(g=Config(log=(tmp / "x").open("ab"))),
    "it: a socket": lambda tmp: socket.socket(),
    "it: a connection to a database": lambda tmp: sqlite3.connect(":memory:"),
    "it: a cursor of a database": lambda tmp: sqlite3.connect(":memory:").cursor(),
    "it: a generator. Send `list(it)` instead": lambda tmp: numbers(),
    "it[0]: a generator. Send `list(it[0])` instead": lambda tmp: [numbers()],
    "it: a generator": lambda tmp: map(str, numbers()),
    "it → lock: a lock": lambda tmp: with_closure(),
    "it.lock: a lock": lambda tmp: itself(),
    "it.inside['db']: a connection": lambda tmp: Hides(),
    "it.lock: a lock. Create it inside the cell, or set it.lock to None": lambda tmp: Slots(),
    "it[0].guard: a lock": lambda tmp: hooked(),
    "it: an iterator of a DataLoader": lambda tmp: iter(torch.utils.data.DataLoader(range(2))),
    "it['b'][0]: a lock": lambda tmp: pd.DataFrame({"a": [1], "b": [threading.Lock()]}),
    "it[1]: a lock": lambda tmp: np.array([1, threading.Lock()], dtype=object),
    "it.args[0]: a lock": lambda tmp: functools.partial(print, threading.Lock()),
    "it.__self__.lock: a lock": lambda tmp: Config(lock=threading.Lock()).__init__,
    "it: a threading.Thread with a": lambda tmp: threading.Thread(),
    "it.done: a threading.Event with a lock in it": lambda tmp: Config(done=threading.Event()),
    "it.mutex: a lock. Create it inside the cell.": lambda tmp: queue.Queue(),
    "it[1]: a lock. Create": lambda tmp: collections.deque([1, threading.Lock()]),
    "it → a key: a lock": lambda tmp: {threading.Lock(): 1},
    "it: data of one thread": lambda tmp: threading.local(),
}


@pytest.mark.parametrize("said", OBSTACLES)
def test_what_is_in_the_way_is_named(said: str, tmp_path: Path) -> None:
    value = OBSTACLES[said](tmp_path)
    path, _, rest = said.partition(": ")
    with pytest.raises(UsageError) as raised:
        dump(value, "it")
    assert str(raised.value).startswith(f"{path} cannot be sent to another process: it is {rest}")
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


def test_who_uses_it_is_named() -> None:
    with pytest.raises(UsageError, match="db, which load uses, cannot be sent"):
        dump(sqlite3.connect(":memory:"), "db", used_by="load")


def test_an_object_is_told_what_is_wrong_with_its_class(notebook: Any) -> None:
    main = notebook("import threading\nclass A:\n  lock = threading.Lock()\na = A()")
    with pytest.raises(UsageError, match=r"a → A\.lock cannot be sent .* it is a lock"):
        dump(main["a"], "a")


def test_a_long_chain_is_called_one() -> None:
    chain = None
    for _ in range(100_000):
        chain = [chain]
    with pytest.raises(UsageError, match="chain cannot be sent .* too long to follow"):
        dump(chain, "chain")


def test_the_way_back_is_said_otherwise() -> None:
    values = {"good": 1, "bad": numbers()}
    with pytest.raises(UsageError, match="bad cannot be brought to the notebook.*Ask for `list"):
        dump(values, names=list(values), to_notebook=True)


def test_what_looks_difficult_and_is_not() -> None:
    trip([{"f": lambda x: x}, logging.getLogger("a"), random.Random(1), np.random.default_rng()])
    assert trip({"k": 1}.keys()) == {"k"}
    assert trip(memoryview(b"abc")) == b"abc"


def test_a_plain_pickle_can_be_read_by_anyone() -> None:
    pickled: Pickled = dump({"a": [1, 2]})
    assert pickle.loads(pickled.stream) == {"a": [1, 2]}
