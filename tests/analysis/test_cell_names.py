"""Which names a cell needs from the notebook: a table of cells, and programs that really run."""

from __future__ import annotations

import builtins
import dis
import re
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from textwrap import dedent, indent
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from jupyter_sky.analysis.cell_names import CellNames, analyse


def names(text: str) -> set[str]:
    return set(text.split())


def found(cell: str) -> tuple[set[str], set[str]]:
    result = analyse(dedent(cell))
    return set(result.reads) - set(dir(builtins)), set(result.writes)


CASES = {
    # cell: (reads, writes)
    "": ("", ""),
    "y = x": ("x", "y"),
    "x = 1; y = x": ("", "x y"),
    "y = x; x = 1": ("x", "x y"),
    "x = x + 1": ("x", "x"),
    "a = b = c": ("c", "a b"),
    "a, (b, *c) = d": ("d", "a b c"),
    "a.b = c": ("a c", ""),
    "a[b] = c": ("a b c", ""),
    "x[i], i = y": ("x i y", "i"),
    "i, x[i] = y": ("x y", "i"),
    "x += y": ("x y", "x"),
    "x = 0; x += 1": ("", "x"),
    "x.y += 1": ("x", ""),
    "x: int = y": ("y", "x"),
    "x: T": ("T", ""),
    "f(a, *b, c=d, **e)": ("f a b d e", ""),
    "x = 1; del x; x": ("", "x"),  # a NameError, wherever it runs
    "del x": ("x", ""),
    "del x[i]": ("x i", ""),
    'f"{a!r:>{b}} {c=}"': ("a b c", ""),
    "lambda a, *b, c=d, **e: a + b + c + e + g": ("d g", ""),
    "{(a := 1): b, (b := 2): a}": ("b", "a b"),
    "await f(x)": ("f x", ""),
    "a if b else c": ("a b c", ""),
    "global x\nx = 1": ("", "x"),
    # imports
    "import a": ("", "a"),
    "import a.b.c": ("", "a"),
    "import a.b.c as d; d; a": ("a", "d"),
    "from a import b, c as d": ("", "b d"),
    "x; from a import *; y": ("x y", ""),
    # walrus and comprehensions
    "def f(): return b\nx = [f() for b in y]": ("b y", "f x"),
    "class K:\n    def m(self): return b\nx = [K().m() for a in y for b in a]": ("b y", "K x"),
    "def f(): return b\nb = 1\nx = [f() for b in y]": ("y", "b f x"),
    "x = [(lambda: b)() for b in y]": ("y", "x"),
    "(x := 1) + x": ("", "x"),
    "x + (x := 1)": ("x", "x"),
    "a and (x := 1); x": ("a x", "x"),
    "(x := 1) and a; x": ("a", "x"),
    "a < (x := 1) < (y := 2); x; y": ("a y", "x y"),
    "[x for x in xs]; x": ("xs x", ""),
    "[x for x in x]": ("x", ""),
    "[y for x in xs for y in x if z]": ("xs z", ""),
    "{k: v for k, v in d.items()}": ("d", ""),
    "[(y := x) for x in xs]; y": ("xs y", "y"),
    "(x async for x in xs)": ("xs", ""),
    "[0 for a[i] in xs]": ("a i xs", ""),
    # branches
    "if c: x = 1\nx": ("c x", "x"),
    "if c: x = 1\nelse: x = 2\nx": ("c", "x"),
    "if c: x = 1\nelse: raise E\nx": ("c E", "x"),
    "if c: x = 1\nelif d: x = 2\nelse: x = 3\nx": ("c d", "x"),
    "if (x := c): pass\nx": ("c", "x"),
    "assert c, (x := m)\nx": ("c m x", "x"),
    # loops
    "for x in xs: y = x\ny": ("xs y", "x y"),
    "for x in xs: pass\nelse: y = 1\ny": ("xs", "x y"),
    "for x in xs:\n  if c: break\nelse: y = 1\ny": ("xs c y", "x y"),
    "for x in (1, 2): y = x\nx; y": ("", "x y"),
    "for x in (1, 2):\n  if c: continue\n  y = x\ny": ("c y", "x y"),
    "for x in (*a,): y = x\ny": ("a y", "x y"),
    "for x in xs:\n  print(y)\n  y = x": ("xs y", "x y"),
    "for a[i] in xs: pass": ("a i xs", ""),
    "while c: x = 1\nx": ("c x", "x"),
    "while True:\n  x = 1\n  break\nx": ("", "x"),
    "while True:\n  if c: break\n  x = 1\nx": ("c x", "x"),
    "while (x := f()): pass\nx": ("f", "x"),
    "async for x in xs: pass": ("xs", "x"),
    # exceptions and context managers
    "try: import x\nexcept ImportError: x = None\nx": ("", "x"),
    "try: x = f()\nexcept E: pass\nx": ("f E x", "x"),
    "try: x = f()\nexcept E: raise\nx": ("f E", "x"),
    "try: x = f()\nfinally: print(x)": ("f x", "x"),
    "try: f()\nfinally: x = 1\nx": ("f", "x"),
    "try: f()\nexcept E: x = 1\nelse: x = 2\nx": ("f E", "x"),
    "try: f()\nexcept E as e: print(e)": ("f E", ""),
    "try: f()\nexcept E as e: pass\ne": ("f E e", ""),
    "try: f()\nexcept* E as e: print(e)": ("f E", ""),
    "with a as b: x = b\nx": ("a", "b x"),
    "with a() as b[i], b: pass": ("a b i", ""),
    "with contextlib.suppress(E): x = 1\nx": ("contextlib E x", "x"),
    "async with a as b: b": ("a", "b"),
    "raise E(x) from y": ("E x y", ""),
    # match
    "match x:\n  case 1: y = 1\n  case _: y = 2\ny": ("x", "y"),
    "match x:\n  case 1: y = 1\ny": ("x y", "y"),
    "match x:\n  case a if a > b: y = 1\na": ("x b a", "a y"),
    "match x:\n  case C(a, b=[*b]) | {k.v: a, **b}: a, b": ("x C k", "a b"),
    # functions
    "def f(a, /, b=c, *d, e=g, **h) -> T: return a, b, d, e, h": ("c g T", "f"),
    "def f(a: T): x: U = a": ("T", "f"),
    "def f(): return x": ("", "f"),
    "def f(): return x\nf()": ("x", "f"),
    "def f(): return x\nx = 1\nf()": ("", "f x"),
    "def f(): return x\nif c: x = 1\nf()": ("x c", "f x"),
    "def f(): return g()\ndef g(): return x\nf()": ("x", "f g"),
    "def f(): return g()\nh = f\ndef g(): return x\nh()": ("g x", "f g h"),
    "def f(): return f()\nf()": ("", "f"),
    "def f():\n  y = x\n  x = 1\nf()": ("", "f"),
    "def f(x):\n  class K: x += 1\nf(0)": ("x", "f"),
    "def f(x):\n  class K: y = x\nf(0)": ("", "f"),
    "def f(x):\n  class K:\n    class L: x += 1\nf(0)": ("x", "f"),
    "def f():\n  if x: pass\n  for x in y: pass\nf()": ("y", "f"),
    "def f():\n  global x\n  x = y\nf()": ("y", "f x"),
    "def f():\n  global x\n  x += 1\nf()": ("x", "f x"),
    "def f():\n  x = 1\n  def g():\n    nonlocal x\n    x = y\n  return g\nf": ("y", "f"),
    "def f():\n  x = 1\n  def g():\n    global x\n    return x\n  return g\nf": ("x", "f"),
    "def f():\n  x = 1\n  return lambda: x + y\nf": ("y", "f"),
    "def f(): return [x for x in xs], x\nf": ("xs x", "f"),
    "def f():\n  [(y := x) for x in xs]\n  return y\nf": ("xs", "f"),
    "def f():\n  import a.b\n  return a\nf": ("", "f"),
    "def f():\n  try: pass\n  except E as e: e\n  e\nf": ("E", "f"),
    "def f():\n  del x\nf": ("", "f"),
    "def f():\n  x: int\n  return x\nf": ("", "f"),
    "@d(a)\ndef f(): return x\nx = 1": ("d a x", "f x"),
    "async def f(): return x\nawait f()": ("x", "f"),
    "for i in (0, 1):\n  if i: f()\n  def f(): return x\n  if c: x = 1": ("c f x", "f i x"),
    "call(lambda: x); x = 1": ("call x", "x"),
    # classes
    "class A(B, metaclass=M): x = y": ("B M y", "A"),
    "class A:\n  x = 1\n  y = x": ("", "A"),
    "class A:\n  x = x": ("x", "A"),
    "class A:\n  x = 1\n  def f(self): return x\nA": ("x", "A"),
    "class A:\n  x = [1]\n  y = [x for _ in x]": ("x", "A"),
    "class A:\n  def f(self): return x\nx = 1\nA().f()": ("", "A x"),
    "class A(B):\n  def f(self): return x\nx = 1": ("B x", "A x"),
    "class A:\n  def f(): return x\n  y = f()\nx = 1": ("x", "A x"),
    "class A:\n  def f(self): super(); return __class__\nA": ("", "A"),
    "class A:\n  x = 1\n  y = call(lambda: x)": ("call x", "A"),
    "class A:\n  x = 1\n  del x\n  y = x": ("x", "A"),
    "class A:\n  global x\n  x = 1": ("", "A x"),
    "class A:\n  x: T = 1; __qualname__": ("T", "A"),
    "def f(): return x\nclass A: y = f()": ("x", "A f"),
    "def f():\n  x = 1\n  class A:\n    y = x\n    def g(self): return x, z\nf": ("z", "f"),
    # pandas
    "df.query('age > @limit and b < @c.d')": ("df limit c", ""),
    "exec('b = a + 1; [i for i in b]')": ("a b", ""),
    "def f(): return eval(' g(a) + (lambda x: x + h)(1)')\nf()": ("g a h", "f"),
    "exec('def f(x): return x + k')": ("k", ""),
    "eval('a +'); eval('a', {'a': 1})": ("", ""),
    "n = 1; df.eval(expr='a = @n + @m', inplace=True)": ("df m", "n"),
    "def f(k): return df.query('a in @k and b in @ks')\nf(1)": ("df ks", "f"),
    "@wrap\ndef f(): return x.split('@at')": ("wrap x", "f"),
    "pd.eval('a + b.c > 1'); pd.eval(expr='c = d\\ne = f', target=g)": ("pd a b d f g", ""),
    "def f(a): return pandas.eval('a + b')\nf": ("pandas b", "f"),
    "ne.evaluate('a + b'); numexpr.evaluate('c')": ("ne numexpr a b c", ""),
    "df.eval('a + b'); pd.eval('a +'); pd.eval(text)": ("df pd text", ""),
    # DuckDB
    "duckdb.sql('select a, b from x as t, y join z using (a) where c')": ("duckdb x y z", ""),
    "duckdb.query('SELECT 1 FROM x'); duckdb.sql(f'from {x}')": ("duckdb x", ""),
    "duckdb.sql('select * from x o, y u left join z'); con.sql('from t limit 3')": (
        "duckdb x y z con t",
        "",
    ),
    "duckdb.sql('-- all\\nselect * from x')": ("duckdb x", ""),
    "duckdb.sql(f'select * from x limit {n}')": ("duckdb x n", ""),
    "q = 'select * from x'\ncon.sql(q)\nprint('loaded from y')": ("con x", "q"),
    "df.query(f'{c} > @limit'); df.query('a > @b' + e)": ("df c limit b e", ""),
    "q = 'age > @limit'\ndf.query(q)": ("df limit", "q"),
    "rows.sql('select * from x')": ("rows", ""),
    # IPython
    "!ls {path}/$name.txt $1 $$HOME": ("path name", ""),
    "!awk '{print $1}' {": ("", ""),
    "files = !ls {path}\nfiles": ("path", "files"),
    "!!ls $path": ("path", ""),
    "model?": ("model", ""),
    "model.layers??": ("model", ""),
    "%matplotlib inline": ("", ""),
    "%cd {folder}": ("folder", ""),
    "%time y = f(x)\ny": ("f x", "y"),
    "%timeit -n 10 -r3 -o f(x)": ("f x", ""),
    "%timeit y = f(x)\ny": ("f x y", "y"),
    "%prun -l 10 -s cumulative f(x)": ("f x", ""),
    "t = %timeit -o -q f(x)\nt": ("f x", "t"),
    "for x in xs:\n    !echo {x} {y}": ("xs y", "x"),
    "%%time\n\nx = 1\nx + y": ("y", "x"),
    "%%timeit x = 1\nx + y": ("y x", "x"),  # conservative: the line may count for nothing
    "%%capture --no-stderr out\n%time x = y\nx": ("y", "out x"),
    "%%bash --out text --err {e}\necho $x {y}": ("e", "text"),
    "%%time\n%%sky --out loss --nodes {n}\nloss = train(model)": ("n", ""),  # ranks bind it
    "get_ipython().push({'x': y}); get_ipython().ev('z')": ("get_ipython y", ""),
    "get_ipython().getoutput('ls', split=flag)": ("get_ipython flag", ""),
    "%%dot --out graph\na -> b": ("", ""),  # a file
}


@pytest.mark.parametrize("cell", CASES)
def test_reads_and_writes(cell: str) -> None:
    reads, writes = CASES[cell]
    assert found(cell) == (names(reads), names(writes))


@pytest.mark.parametrize("cell", [each for each in CASES if not each.startswith("!!")])
def test_a_cell_is_read_as_ipython_has_transformed_it_too(cell: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        transformed = TransformerManager().transform_cell(cell)
    assert (analyse(transformed).always_bound, found(transformed)) == (
        analyse(cell).always_bound,
        found(cell),
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are new in Python 3.12")
@pytest.mark.parametrize(
    ("cell", "reads", "writes"),
    [
        ("def f[T: B](x: T) -> C: return T, y\nf", "B C y", "f"),
        ("class A[T](G[T]):\n  x: T\n  def f(self): return T", "G", "A"),
        ("type L[T] = list[T] | L[U]", "U", "L"),
    ],
)
def test_type_parameters(cell: str, reads: str, writes: str) -> None:
    assert found(cell) == (names(reads), names(writes))


@pytest.mark.skipif(sys.version_info < (3, 15), reason="this syntax is new in Python 3.15")
@pytest.mark.parametrize(
    ("cell", "reads", "writes"),
    [
        ("d = {**each for each in xs}\nl = [*each for each in ys]", "xs ys", "d l"),
        ("lazy import xml.sax\nlazy from os import path as p\nxml.sax, p, y", "y", "xml p"),
    ],
)
def test_lazy_imports_and_unpacking_in_comprehensions(cell: str, reads: str, writes: str) -> None:
    assert found(cell) == (names(reads), names(writes))


def test_builtins_are_reported() -> None:
    assert analyse("print(len(x))").reads == {"print", "len", "x"}


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("x = 1\ny = = 2", 2),
        ("\n\nx = 1\nbreak", 4),
        ("return 1", 1),
        ("\n\n%matplotlib inline\nx = = 1", 4),
        ("\nx = 1\n%time y = = x", 3),
        ("%%time\nx = 1\ny = = 2", 3),
    ],
)
def test_a_syntax_error_has_the_line_of_the_cell(cell: str, line: int) -> None:
    with pytest.raises(SyntaxError) as error:
        analyse(cell)
    assert error.value.lineno == line


@pytest.mark.filterwarnings("error")
def test_warnings_are_left_to_whoever_runs_the_cell() -> None:
    analyse(r"x = '\d' is 'y'")


@pytest.mark.parametrize("above", ["", "%matplotlib inline\n", "%%time\n"])
def test_an_expression_too_deep_to_walk_reports_every_name(above: str) -> None:
    text = above + " + ".join(f"x{i}" for i in range(900))
    assert analyse(text).reads >= {f"x{i}" for i in range(900)}


# Programs that are run twice: with all names of a notebook, and with only those found by `analyse`.

EXPRESSIONS = """
    ($e + $e) | ($n := $e) | ($e if $e else $e) | ($e and $e) | (0 < $e < $e) | (lambda $n=$e: $e)()
    sum([$e for $n in range(2)]) | sum($e for $n in [$e] if $e) | len({$e: $e}) | len(f"{$e}")
    $f() | K().m() | [$n for $n in [$e]][0]
    [($n := $e) for _ in [$e] if $e] | next($e for _ in [0])
    max({$n: $e for $n in range(2) if $e}) | (lambda: [$e for $n in [$e]])()
"""
STATEMENTS = """
$n = $e
---
$n += $e
---
$n: int = $e
---
$n: $e
---
show($e)
---
del $n
---
$f()
---
$f = lambda: $e
---
raise KeyError
---
from math import pi as $n
---
assert $e, $e
---
if $e:
    $b
else:
    $b
---
for $n in range($e):
    tick()
    $b
    if $e: break
    if $e: continue
    $b
else:
    $b
---
for $n in [$e, 1]:
    $b
    if $e: break
    if $e: continue
    $b
---
while True:
    tick()
    $b
    if $e: break
    $b
---
while $e:
    tick()
    $b
    if $e: continue
    $b
---
try:
    $b
    $b
except KeyError as $n:
    $b
except NameError:
    $b
else:
    $b
finally:
    $b
---
try:
    $b
except Exception:
    raise
---
with suppress(Exception):
    $b
---
with nullcontext($e) as $n:
    $b
---
match $e:
    case 0:
        $b
    case $n if $e:
        $b
    case _:
        $b
---
match [$e, $e]:
    case [1, $n]:
        $b
---
def $f($n=$e):
    tick()
    $b
    return $e
---
def $f():
    global $n
    tick()
    $b
    return $e
---
@called
def $f():
    tick()
    $b
    return $e
---
def $f():
    a = $e
    def inner():
        nonlocal a
        tick()
        $b
        return $e
    return inner()
---
class K:
    $b
    def m(self):
        tick()
        $b
        return $e
---
class K(K):
    $b
---
class K:
    @staticmethod
    @called
    def m(a=$e):
        tick()
        $b
        return $e
---
def $f():
    tick()
    yield $e
    $b
---
try:
    $b
except* KeyError as $n:
    $b
---
import math as $n, sys
---
$n = [$f, lambda: $e]
"""
# At the end, a name that was taken for assigned and is not would be missed.
LAST_LOOKS = ["a", "b", "c", "f()", "g()", "K().m()"]


def filled(template: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Replace each ``$x`` of a template by what `parts` make; a block keeps its indentation."""
    pieces = re.split(r"^( *)\$(b)$|\$(\w)", template, flags=re.MULTILINE)

    def assemble(values: tuple[str, ...]) -> str:
        text = ""
        for i, value in enumerate(values):
            fixed, margin = pieces[4 * i], pieces[4 * i + 1] or ""
            text += fixed + indent(value, margin)
        return text + pieces[-1]

    kinds = [block or other for block, other in zip(pieces[2::4], pieces[3::4], strict=True)]
    return st.tuples(*(parts[kind] for kind in kinds)).map(assemble)


variables = st.sampled_from("abc")
functions = st.sampled_from("fg")


def expressions_of(templates: list[str]) -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["0", "1", *"abc"])
    return st.recursive(
        leaves,
        lambda inner: st.sampled_from(templates).flatmap(
            lambda template: filled(template, e=inner, n=variables, f=functions)
        ),
        max_leaves=4,
    )


def blocks_of(templates: list[str], expressions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def block(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        statement = st.sampled_from(templates).flatmap(
            lambda template: filled(template, b=inner, e=expressions, n=variables, f=functions)
        )
        return st.lists(statement, min_size=1, max_size=4).map("\n".join)

    return st.recursive(st.just("pass"), block, max_leaves=12)


every_expression = expressions_of(re.split(r"\s*[|\n]\s*", EXPRESSIONS.strip()))
every_program = st.builds(
    "{}\n{}".format,
    blocks_of(STATEMENTS.strip().split("\n---\n"), every_expression),
    st.sampled_from(["", *(f"try: show({e})\nexcept Exception: pass" for e in LAST_LOOKS)]),
)
straight_program = blocks_of(
    ["$n = $e", "$n += $e", "show($e)", "del $n", "$n: int = $e"],
    expressions_of(["($e + $e)", "($n := $e)", "len({$e: $e})", 'len(f"{$e}")']),
)


class K:
    def m(self) -> int:
        return 7


NOTEBOOK: dict[str, Any] = {
    **{"a": 2, "b": 1, "c": 0},
    **{"f": lambda: 5, "g": lambda: 6, "K": K},
}


class OutOfTime(BaseException):
    """Ends a program that loops; no `except` of a program catches it."""


def run(program: str, namespace: dict[str, Any]) -> list[Any]:
    """Run a program in a namespace; return what it showed and how it ended."""
    events: list[Any] = []
    ticks = iter(range(60))

    def tick() -> None:
        if next(ticks, None) is None:
            raise OutOfTime

    def called(function: Callable[[], Any]) -> Callable[[], Any]:
        events.append(plain(function()))
        return function

    tools = {
        **{"show": lambda value: events.append(plain(value)), "tick": tick, "called": called},
        **{"suppress": suppress, "nullcontext": nullcontext},
    }
    namespace |= {"__name__": "cell", "__builtins__": {**vars(builtins), **tools}}
    try:
        exec(compile(program, "<cell>", "exec", dont_inherit=True), namespace)
    except (Exception, OutOfTime) as error:
        events.append(type(error))
    return events


def plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else type(value).__name__


def analysed(program: str) -> CellNames:
    try:
        return analyse(program)
    except SyntaxError:  # such as a comprehension that assigns its own variable
        assume(False)
        raise


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(every_program)
def test_a_program_needs_its_reads_and_changes_its_writes(program: str) -> None:
    cell = analysed(program)
    whole = dict(NOTEBOOK)
    sent = {name: value for name, value in NOTEBOOK.items() if name in cell.reads}
    assert run(program, sent) == run(program, whole)
    assert (bound := bound_in(whole)) == bound_in(sent)
    assert bound.keys() <= cell.writes


def bound_in(namespace: dict[str, Any]) -> dict[str, Any]:
    return {
        name: plain(namespace[name])
        for name, value in NOTEBOOK.items()
        if namespace.get(name, value) is not value
    }


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(every_program)
def test_what_functions_look_up_later_is_known(program: str) -> None:
    cell = analysed(program)
    code = compile(program, "<cell>", "exec", dont_inherit=True)
    assert looked_up_in_functions(code) - set(dir(builtins)) <= cell.all_deferred_reads


def looked_up_in_functions(code: types.CodeType, within: bool = False) -> set[str]:
    """Return the global names that the compiler lets functions look up, and do not bind first."""
    steps = list(dis.get_instructions(code))
    own = {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    # Since Python 3.14, annotations are looked up when somebody asks for them.
    own.add("__conditional_annotations__")
    found = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"} - own
    immediate = code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
    within = within or not (immediate or code.co_name in ("<module>", "K"))
    parts = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    inner = [each for each in parts if each.co_name != "__annotate__"]
    return (found if within else set()).union(
        *(looked_up_in_functions(each, within) - own for each in inner)
    )


class Cell(dict[str, Any]):
    """The namespace of a cell, which notes what it takes from the notebook."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()
        self.deleted: set[str] = set()

    def __missing__(self, name: str) -> Any:
        if name not in NOTEBOOK or name in self.deleted:
            raise KeyError(name)
        self.taken.add(name)
        return NOTEBOOK[name]

    def __delitem__(self, name: str) -> None:
        self.pop(name, None) is None and self[name]
        self.deleted.add(name)


@settings(max_examples=300, deadline=None)
@given(straight_program)
def test_a_program_without_branches_reads_only_what_it_needs(program: str) -> None:
    cell, namespace = analysed(program), Cell()
    ends = True
    try:
        exec(program, {"show": print}, namespace)
    except NameError:
        ends = False
    reads = cell.reads & NOTEBOOK.keys()
    assert namespace.taken == reads if ends else namespace.taken <= reads
