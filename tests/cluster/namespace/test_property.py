"""Programs do on a rank, cell by cell, what they do in one namespace here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.namespace.notebook import Notebook, open_notebook

NOTEBOOK = """
from functools import partial, lru_cache
import copy
class Box:
    made = 0
    def __init__(self, **parts): vars(self).update(parts)
    def add(self, item): items.append(item); self.last = item; return self
    def total(self): return g(a) + b
a, b = 1, 2
items = [1, 2]
pair = (items, {"items": items})
table = {"k": items, "n": 0}
box = Box(items=items, table=table)
other = Box(box=box)
def f(x): return g(x) + a
def g(x): return x * 2
def count():
    global a
    a += 1
    return a
"""
NAMES = [
    "a",
    "b",
    "items",
    "pair",
    "table",
    "box",
    "other",
    "f",
    "g",
    "count",
    "Box",
    "new",
    "h",
    "k",
]

# They share objects. Of two names that do, the first may be sent, and what it shared be let go of
# on the rank, before the second is needed; then that gets a copy. So they are sent at once here.
TOGETHER = "_ = items, pair, table, box, other"

# What a program is made of; the first name is one that it gets, the others are those it uses.
STATEMENTS = [
    "a = b + 1",
    "a += 1",
    "b = a",
    "b = f(a)",
    "new = count()",
    "new = [a, items]",
    "new = Box(items=items, new=b)",
    "items = [*items, a]",
    "items.append(b)",
    "items = items",
    "table['n'] = a",
    "table['k'] = [b]",
    "table = dict(table)",
    "pair[0].append('p')",
    "pair[1]['more'] = box",
    "box.add(a)",
    "box.items = new",
    "box = other.box",
    "other = Box(box=box, pair=pair)",
    "other.box.n = a",
    "Box.made += 1",
    "new = Box.made",
    "def g(x): return x + b",
    "def h(): return f(b) + a",
    "def h(n=2): return h(n - 1) + a if n else b",
    "def f(x): return x if x > 50 else f(x + 50) + g(a)",
    "def g(x): return f(x) if 0 < x < 9 else x",
    "def h(): return [k(each) for each in (a, b)][-1]",
    "def h(each=items): return len(each) + sum(g(x) for x in each if isinstance(x, int))",
    "b = h()",
    "k = f",
    "k = box.total",
    "k = box.add",
    "k = Box.total",
    "k = partial(g, b)",
    "k = partial(box.add, items)",
    "k = lru_cache(g)",
    "k = lru_cache(lambda x: x + b)",
    "def k(x):\n    global b\n    b = b + 1\n    return g(b)",
    "def k(x, n=[0]):\n    n.append(a)\n    return len(n)",
    "def made():\n    n = 0\n    def add(x=0):\n        nonlocal n\n        n += 1\n"
    "        return n + g(a)\n    return add\nk = h = made()",
    "h = type('Made', (Box,), {'total': lambda self: k(2)})().total",
    "new = {1: new, 'f': f}",
    "new = [h, k, g]",
    "new = (box, box, items)",
    "new = copy.deepcopy(box)",
    "new = copy.copy(other)",
    "Box.total = lambda self: g(b)",
    "Box.shared = items",
    "f = count",
    "g = Box.total",
    "class Box:\n    made = 5\n    def __init__(self, **parts): vars(self).update(parts)\n"
    "    def add(self, item): return self\n    def total(self): return self.made",
    "box.__class__ = Box",
    "globals()['new'] = [a]",
    "exec('items = [5]')",
    "a, *items = [1, 2, b]",
    "(b := a + 1)",
    "with __import__('contextlib').suppress(Exception): del h",
    "a = [b for b in range(3)][-1]",
    "@(lambda f: lambda *x: f(*x))\ndef g(x): return x - a",
    "def k(x, made=Box): return g(x) + made.made",
    "def k(x):\n    def inner(): return x + h()\n    return inner()",
    "k = lambda x: g(x) + a",
    "b = k(b)",
    "box.k = k",
    "b = box.k(b)",
    "a = box.total()",
    "new = isinstance(box, Box), isinstance(other, Box)",
    "class Box(Box): extra = 1",
    "del b",
    "if a > 2: b = 7",
    "if a > 2: items = []",
    "for a in range(3): items.append(a)",
    "try: new = new.new\nexcept Exception: new = None",
    "1 / 0",
    "raise ValueError(a)",
]
# What the notebook assigns in between, without looking at what only the rank has.
ASSIGNMENTS = [
    "a = 5",
    "b = 6",
    "items = [1, 2]",
    "table = {'k': 0, 'n': 0}",
    "new = {'n': [0]}",
    "def g(x): return x - 1",
    "def f(x): return g(x) * a",
    "b = 0\ndel b",
    "h = lambda: 7",
    "def k(x=2): return k(x - 1) if x else h()",
    "g = 0\ndel g",
]

cells = st.one_of(
    st.tuples(st.just("there"), st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4)),
    st.tuples(st.just("here"), st.lists(st.sampled_from(ASSIGNMENTS), min_size=1, max_size=2)),
)
programs = st.lists(cells, min_size=1, max_size=8)

# What a namespace holds, with what is the same object in it, as text.
SURVEY = f"""
def _survey():
    seen = {{}}
    def told(value):
        if isinstance(value, (int, str, type(None), bool)): return repr(value)
        # Of two that are alike and do not change it makes no difference which one it is.
        if hasattr(value, '__code__') and not hasattr(value, '__self__'):
            return f"function {{value.__name__}} {{value.__code__.co_code}}"
        if isinstance(value, tuple): return f"tuple({{', '.join(map(told, value))}})"
        if hasattr(value, 'func'): return f"partial {{told(value.func)}} {{told(value.args)}}"
        if hasattr(value, 'cache_info'): return f"cached {{told(value.__wrapped__)}}"
        if hasattr(value, '__self__'): return f"{{value.__name__}} of {{told(value.__self__)}}"
        if id(value) in seen: return f"#{{seen[id(value)]}}"
        seen[id(value)] = len(seen)
        if isinstance(value, list): return f"list({{', '.join(map(told, value))}})"
        if isinstance(value, dict):
            return f"dict({{', '.join(f'{{key}}: {{told(each)}}' for key, each in value.items())}})"
        if isinstance(value, type): return f"class {{value.__name__}} {{value.made}}"
        return f"{{told(type(value))}} with {{told(vars(value))}}"
    return [f"{{name}}: {{told(globals()[name])}}" for name in {NAMES} if name in globals()]
_surveyed = _survey()
_ = {", ".join(f"lambda: {name}" for name in NAMES)}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    spec, runtime_env = assemble(ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}", nodes=1), [])
    cluster = Cluster.start(spec, Local(), runtime_env)
    yield cluster
    cluster.down()


# As a program brings them home, cell by cell. Classes of the notebook stay as they are.
HOME = [each for each in STATEMENTS if not each.startswith(("Box.", "class Box", "box.__class__"))]
homing = st.lists(
    st.tuples(
        st.sampled_from(["there", "here"]),
        st.lists(st.sampled_from(HOME), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=6,
)
EVERYTHING = f"_ = {', '.join(f'lambda: {name}' for name in NAMES)}"


def told_here(program: list[tuple[str, list[str]]]) -> list[Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    events: list[Any] = []
    for cell in [NOTEBOOK, *("\n".join(statements) for _, statements in program), SURVEY]:
        try:
            exec(compile(cell, "<cell>", "exec", dont_inherit=True), names)
        except Exception as error:
            events.append(type(error).__name__)
    return [*events, *names["_surveyed"]]


def told_there(notebook: Notebook, program: list[tuple[str, list[str]]]) -> list[Any]:
    events: list[Any] = []
    notebook.there(f"for _name in {NAMES}: globals().pop(_name, None)")
    notebook.here(NOTEBOOK)
    notebook.there(TOGETHER)
    for place, statements in program:
        run = notebook.there if place == "there" else notebook.here
        try:
            run("\n".join(statements))
        except Exception as error:
            events.append(type(error).__name__)
    return [*events, *notebook.there(SURVEY, out=["_surveyed"])[0]["_surveyed"]]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# What objects of the ranks look up: too seldom met by chance.
@example([("there", ["k = f"]), ("here", ["a = 5"]), ("there", ["b = k(b)"])])
@example([("there", ["k = lambda x: g(x) + a"]), ("here", ["a = 5"]), ("there", ["b = k(b)"])])
@example([("there", ["box = Box()"]), ("here", ["b = 6"]), ("there", ["a = box.total()"])])
@given(programs)
def test_cells_on_a_rank_do_what_they_do_here(
    cluster: Cluster, program: list[tuple[str, list[str]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        notebook = open_notebook(cluster, patch)
        assert told_there(notebook, program) == told_here(program)


def told_at_home(notebook: Notebook, program: list[tuple[str, list[str]]]) -> list[Any]:
    events: list[Any] = []
    notebook.there(f"for _name in {NAMES}: globals().pop(_name, None)")
    notebook.here(NOTEBOOK)
    notebook.there(f"{TOGETHER}\n{EVERYTHING}")
    for place, statements in program:
        run = notebook.there if place == "there" else notebook.here
        try:
            run("\n".join(statements) + f"\n{EVERYTHING}" * (place == "there"))
        except Exception as error:
            events.append(type(error).__name__)
            if place == "there" and not any("del " in each for each in statements):
                # What the cell did not come to bind is sent when it is used next.
                notebook.there(EVERYTHING)
        if place == "there":
            [names] = notebook.ask(f"[name for name in {NAMES} if name in globals()]")
            notebook.there(EVERYTHING, out=names)
            notebook.here(f"for _name in {sorted({*NAMES} - {*names})}: globals().pop(_name, None)")
    notebook.here(SURVEY)
    return [*events, *notebook.names["_surveyed"]]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# A dictionary of objects has no token.
@example([("there", ["pair[1]['more'] = box", "other = Box(box=box, pair=pair)"]), ("there", [])])
# A name of the notebook that a cell would have bound, had it not failed before.
@example([("here", ["k = f"]), ("there", ["1 / 0", "k = lambda x: g(x) + a"])])
@given(homing)
def test_what_comes_back_is_what_it_is_where_cells_run_here(
    cluster: Cluster, program: list[tuple[str, list[str]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        notebook = open_notebook(cluster, patch)
        assert told_at_home(notebook, program) == told_here(program)
