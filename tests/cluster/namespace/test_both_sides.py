"""The notebook and the ranks change the same containers, and each keeps what the other did."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.namespace.notebook import Notebook, in_both, open_notebook

BEGIN = """
import numpy
from collections import defaultdict
from types import SimpleNamespace
class Box:
    def __init__(self, **parts): vars(self).update(parts)
    def reset(self):
        self.a = 0
        self.rows[0]['x'] = 0
config = {'lr': 0, 'opt': {'m': 0, 'n': 0}, 'log': [0]}
log = config['log']
args = SimpleNamespace(step=0, config=config, w=numpy.zeros(2))
seen = {0}
by_name = defaultdict(list, a=[])
box = Box(args=args, seen=seen, rows=[{'x': 0}, {'x': 1}])
pair = (config, [log])
def begin_anew():
    config['lr'] = 0
    zero(args, rows=box.rows)
def zero(run, *, rows):
    run.step = 0
    run.w[:] = 0
    clear_each(rows)
def clear_each(rows):
    for row in rows: clear(row)
def clear(row):
    row['x'] = 0
"""
NAMES = "config", "log", "args", "seen", "by_name", "box", "pair"
KEYS = "abc"

# Each has the number of the statement for n. What ranks do leaves in place what is in containers:
# the notebook does not see that another object is there now.
ON_RANKS = [
    "config['{k}'] = {n}",
    "config['opt']['{k}'] = {n}",
    "args.{k} = {n}",
    "args.w[0] = {n}",
    "log.append({n})",
    "seen.add({n})",
    "seen.discard(0)",
    "by_name['a'].append({n})",
    "box.{k} = {n}",
    "box.rows[0]['{k}'] = {n}",
    "box.new_{k} = [{{'{k}': {n}}}, log]",
    "config.pop('{k}', None)",
    "vars(args).pop('{k}', None)",
    "pair[1].append({n})",
    "args.w += {n}",
    "log += [{n}]",
]
HERE = [
    *ON_RANKS[:3],
    *ON_RANKS[4:-5],
    "log += [{n}]",
    "log += []",
    "config |= {{'lr': 0}}",
    "seen |= {{0}}",
    "seen -= {{{n}}}",
    "args.w.fill(0)",
    "args.w[:] = 0",
    "box.reset()",
    "for row in box.rows: row['x'] = 0",
    "for index in range(len(box.rows)): box.rows[index]['x'] = 0",
    "begin_anew()",
    "zero(box.args, rows=[])",
    "clear_each(box.rows)",
    "for row in box.rows: clear(row)",
    "[row.update(x=0) for row in box.rows]",
    "config.pop('{k}', None)",
    "vars(args).pop('{k}', None)",
    "config['lr'] = 0",
    "config['opt'].update({k}=0)",
    "args.step = 0",
    "args.{k} = 0",
    "seen.add(0)",
    "log.clear()",
    "box.rows[0]['x'] = 0",
    "config.setdefault('lr', {n})",
    "config['opt'] = {{'m': {n}}}",
    "box.rows[1] = {{'x': {n}}}",
    "box.rows.append({{'x': {n}}})",
    "config['shared'] = log",
    "config['both'] = ({n}, log)",
    "box.log = log",
    "args.opt = config['opt']",
    "args = SimpleNamespace(step={n}, config=config, w=numpy.zeros(2))",
    "box.args = args",
    "pair = (config, [{n}, log])",
    "config['array'] = numpy.arange({n})",
    "config = {{'lr': {n}, 'opt': config['opt'], 'log': log}}",
    "log = config['log']",
]


def survey(names: str) -> str:
    """Return code that binds a text of what names hold, and of what in them is the same object."""
    return f"""
def _survey():
    found = {{}}
    def told(value):
        if isinstance(value, (int, str)): return repr(value)
        if isinstance(value, tuple): return f"({{', '.join(map(told, value))}})"
        if id(value) in found: return f"#{{found[id(value)]}}"
        found[id(value)] = len(found)
        if isinstance(value, list): return f"[{{', '.join(map(told, value))}}]"
        if isinstance(value, set): return f"set {{sorted(value)}}"
        if hasattr(value, 'tolist'): return f"array {{value.tolist()}}"
        if isinstance(value, dict):
            parts = (f'{{key}}: {{told(value[key])}}' for key in sorted(value))
            return f"{{type(value).__name__}} {{', '.join(parts)}}"
        return f"{{type(value).__name__}} with {{told(vars(value))}}"
    return [told(each) for each in ({names})]
_surveyed = _survey()
"""


SURVEY = survey(", ".join(NAMES))

sides = st.sampled_from(["here", "there"])
choices = st.tuples(sides, st.lists(st.integers(0, 999), min_size=1, max_size=3))


@pytest.fixture
def notebook(shared, monkeypatch) -> Notebook:
    return open_notebook(shared.cluster, monkeypatch)


def program(chosen: list[tuple[str, list[int]]]) -> list[tuple[str, str]]:
    """Return cells of statements, each with the side on which it runs.

    What assigns a name has a cell of its own: of an object that had the name before in the same
    cell, syntax does not tell at its end what was set in it.
    """
    cells: list[tuple[str, str]] = []
    count = 0
    for side, numbers in chosen:
        statements = []
        for number in numbers:
            count += 1
            pool = HERE if side == "here" else ON_RANKS
            text = pool[number % len(pool)].format(k=KEYS[number % len(KEYS)], n=count)
            if text.startswith(tuple(f"{name} = " for name in NAMES)):
                cells += [(side, "\n".join(statements)), (side, text)]
                statements = []
            else:
                statements.append(text)
        cells.append((side, "\n".join(statements)))
    return [(side, cell) for side, cell in cells if cell]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chosen=st.lists(choices, min_size=2, max_size=8))
def test_each_side_keeps_what_the_other_did(notebook, chosen) -> None:
    read = "numpy", "SimpleNamespace", *NAMES
    ranks, expected = in_both(notebook, BEGIN, program(chosen), read, SURVEY)
    assert ranks == [expected] * 4


@pytest.mark.parametrize(
    "make",
    [
        "state = {'step': 0, 'w': numpy.zeros(2)}",
        "state = {'step': 0, 'w': w}",
        "state = [0, numpy.zeros(2)]; state = {'step': 0, 'rest': state}",
    ],
)
def test_what_is_made_anew_is_new_whatever_its_address(notebook, make) -> None:
    notebook.here("import numpy; w = numpy.zeros(2)")
    for _ in range(6):
        notebook.here(make)
        notebook.there("state['step'] += 1")
        assert notebook.ask("state['step']") == [1] * 4


MADE_EMPTY = [
    ("{}", "['there'] = rank", "['here'] = numpy.ones(1)"),
    ("[]", ".append(rank)", ".append(numpy.ones(1))"),
    ("{'here': 0}", "['there'] = rank", "['here'] = numpy.ones(1)"),
    ("defaultdict(list)", "['there'].append(rank)", "['here'].append(numpy.ones(1))"),
]


@pytest.mark.parametrize(("make", "there", "here"), MADE_EMPTY)
@pytest.mark.parametrize("name", ["saved", "box.saved", "saved[0]"])
def test_what_began_without_arrays_keeps_what_ranks_put_into_it(
    notebook, name, make, there, here
) -> None:
    begin = (
        "import numpy\nfrom collections import defaultdict\n"
        f"class Box: pass\nbox = Box(); saved = [0]; {name} = {make}"
    )
    notebook.here(begin)
    notebook.there(f"{name}{there}")
    notebook.here(f"{name}{here}")
    has = f"str({name})"
    plain = [{"rank": rank} for rank in range(4)]
    for each in plain:
        exec("\n".join([begin, f"{name}{there}", f"{name}{here}"]), each)
    assert notebook.ask(has) == [eval(has, each) for each in plain]
    notebook.here(f"{name} = {make}; {name}{here}")
    assert notebook.ask(has) == [str(eval(name, notebook.names))] * 4


def test_what_an_object_computes_for_itself_is_no_change_of_the_rest(notebook) -> None:
    notebook.here(
        "class Reader:\n"
        "    def __init__(self): self.read, self._cache = 0, None\n"
        "    def rows(self): self._cache = self._cache or [1, 2]; return self._cache\n"
        "reader = Reader()"
    )
    notebook.there("reader.read += 1")
    notebook.here("reader.rows()")
    assert notebook.ask("(reader.read, reader._cache)") == [(1, [1, 2])] * 4


def test_ranks_differ_in_what_they_have_changed(notebook) -> None:
    notebook.here("state = {'step': 0, 'lr': 1.0}")
    notebook.there("state['step'] = state[f'own {rank}'] = rank")
    notebook.here("state['lr'] = 0.1")
    seen = [{"step": rank, "lr": 0.1, f"own {rank}": rank} for rank in range(4)]
    assert notebook.ask("state") == seen
    notebook.there("state['lr'] = 0.5", ranks=[2])
    notebook.here("state.update(lr=0.1); state['more'] = 1")
    assert notebook.ask("state") == [{**each, "more": 1} for each in seen]
    notebook.here("state = {'step': 0}")
    assert notebook.ask("state") == [{"step": 0}] * 4


def test_what_a_rank_has_bound_anew_costs_others_nothing(notebook) -> None:
    notebook.here("seen, state = [0], {'step': 0}")
    notebook.there("seen.append(rank)\nstate['step'] = rank\nif rank == 0: seen, state = [5], {}")
    notebook.here("seen.append(7)\nstate['lr'] = 0.1")
    others = [([0, rank, 7], {"step": rank, "lr": 0.1}) for rank in range(1, 4)]
    assert notebook.ask("seen, state") == [([0, 7], {"step": 0, "lr": 0.1}), *others]


def test_what_comes_home_is_what_later_changes_count_from(notebook) -> None:
    notebook.here("state = {'step': 0, 'seen': [0]}")
    notebook.there("state['step'] += 1; state['seen'].append(rank)", out=["state"])
    assert notebook.names["state"] == {"step": 1, "seen": [0, 0]}
    notebook.there("state['step'] += 1")
    notebook.here("state['seen'].append('here')")
    assert notebook.ask("state") == [{"step": 2, "seen": [0, rank, "here"]} for rank in range(4)]


@pytest.mark.parametrize(
    ("made", "part"),
    [
        ("{'step': 0, 'lr': 1}", "made"),
        ("[({'step': 0, 'lr': 1}, rank)]", "made[0][0]"),
        ("SimpleNamespace(step=0, lr=1)", "vars(made)"),
        ("Box(metric=print_it, log=[rank], args=SimpleNamespace(step=0, lr=1))", "vars(made.args)"),
    ],
)
def test_what_ranks_have_made_and_only_the_head_has_brought_home(notebook, made, part) -> None:
    """As ``--out`` does: the other ranks' values have not been seen here."""
    notebook.there(
        "from types import SimpleNamespace\ndef print_it(): print(it)\n"
        "class Box:\n  def __init__(self, **parts): vars(self).update(parts)\n"
        f"made = kept = {made}",
        out=["made"],
    )
    notebook.there(f"{part}['step'] += 1 + rank")
    notebook.here(f"{part}['lr'] = 7")
    seen = [(1 + rank, 7, True) for rank in range(4)]
    assert notebook.ask(f"({part}['step'], {part}['lr'], kept is made)") == seen
    notebook.there(f"{part}['step'] += 1", out=["made"])
    notebook.here(f"here = {part}['step'], {part}['lr']")
    assert notebook.names["here"] == (2, 7)


def test_what_only_the_head_has_brought_home_is_also_in_a_value_of_the_notebook(notebook) -> None:
    notebook.there("config = {'step': 0, 'lr': 1}", out=["config"])
    notebook.there("config['step'] += 1 + rank")
    notebook.here("both = {'config': config}\nconfig['lr'] = 7")
    seen = [({"step": 1 + rank, "lr": 7}, True) for rank in range(4)]
    assert notebook.ask("(config, both['config'] is config)") == seen


def test_what_the_head_has_brought_home_in_a_run_of_its_own(notebook) -> None:
    notebook.there("made = {'step': 0, 'lr': 1, 'args': {'lr': 1}}")
    notebook.there("", out=["made"], ranks=[0])
    notebook.there("made['step'] += 1 + rank")
    notebook.here("made['args']['lr'] = 7")
    seen = [{"step": 1 + rank, "lr": 1, "args": {"lr": 7}} for rank in range(4)]
    assert notebook.ask("made") == seen


def test_what_is_changed_and_put_into_a_value_that_ranks_have(notebook) -> None:
    notebook.here("config, both = {'step': 0, 'lr': 1}, {'config': {'step': 50, 'lr': 50}, 'n': 0}")
    notebook.there("config['step'] += 1 + rank; both['n'] = rank")
    notebook.here("both['config'] = config; config['lr'] = 7")
    seen = [({"step": 1 + rank, "lr": 7}, rank, True) for rank in range(4)]
    assert notebook.ask("(config, both['n'], both['config'] is config)") == seen


@pytest.mark.parametrize("here", ["", "; made['args']['lr'] = 7"])
def test_what_only_the_head_has_brought_home_has_another_name_in_the_notebook(
    notebook, here
) -> None:
    notebook.here("kept, args = {'step': 50}, {'step': 50}")
    notebook.ask("(kept, args)")
    notebook.there("made = {'step': 0, 'args': {'step': 0, 'lr': 1}}", out=["made"])
    notebook.there("made['step'] += 1 + rank; made['args']['step'] += 1 + rank")
    notebook.here(f"kept, args = made, made['args']{here}; del made")
    lr = 7 if here else 1
    seen = [(1 + rank, {"step": 1 + rank, "lr": lr}, True) for rank in range(4)]
    assert notebook.ask("(kept['step'], args, kept['args'] is args)") == seen


def test_a_function_in_a_container_is_a_part_like_others(notebook) -> None:
    notebook.here("def metric(): pass\nconfig = {'metric': metric, 'step': 0, 'lr': 1}")
    notebook.there("config['step'] += 1")
    notebook.here("config['lr'] = 7")
    assert notebook.ask("(config['step'], config['lr'])") == [(1, 7)] * 4


def test_a_container_of_too_many_parts_is_that_of_the_notebook(notebook) -> None:
    notebook.here("numbers = dict.fromkeys(range(2000), 0)")
    notebook.there("numbers[0] = 1")
    notebook.here("numbers[1] = 1")
    assert notebook.ask("(numbers[0], numbers[1])") == [(0, 1)] * 4


def test_a_deque_keeps_what_ranks_took_from_it_like_a_list(notebook) -> None:
    notebook.here(
        "from collections import deque\n"
        "jobs, last = deque([1, 2, 3]), deque([{'n': 1}, {'n': 2}], maxlen=3)"
    )
    notebook.there("jobs.popleft(); jobs[0] += rank; last.append(rank); last[0]['there'] = rank")
    notebook.here("jobs.append(4); last.append('here'); last[0]['n'] = 5")
    for rank, (left, latest, most) in enumerate(notebook.ask("(jobs, last, last.maxlen)")):
        assert ([*left], [*latest], most) == ([2 + rank, 3, 4], [{"n": 2}, rank, "here"], 3)
    notebook.here("jobs.clear(); jobs.append(5); last.append('more')")
    assert notebook.ask("([*jobs], last[-1], last.maxlen)") == [([5], "more", 3)] * 4


def test_dictionaries_of_other_kinds(notebook) -> None:
    notebook.here(
        "from collections import Counter, OrderedDict\n"
        "counts, steps = Counter(a=1), OrderedDict(first=1, second=2)"
    )
    notebook.there("counts.update(a=rank, b=1); steps['there'] = rank")
    notebook.here("counts['c'] = 5; steps.move_to_end('first'); steps['second'] = 3")
    for rank, (seen, order) in enumerate(notebook.ask("(dict(counts), list(steps.items()))")):
        assert seen == {"a": 1 + rank, "b": 1, "c": 5}
        assert order == [("first", 1), ("second", 3), ("there", rank)]
    notebook.here("counts.update(c=1)")  # adds
    assert notebook.ask("counts['c']") == [6] * 4


def test_keys_of_other_kinds(notebook) -> None:
    notebook.here(
        "import datetime, enum, numpy\n"
        "from pathlib import Path\n"
        "class Split(enum.Enum): TRAIN = 1; TEST = 2\n"
        "class Same(str):\n"
        "    def __repr__(self): return 'same'\n"
        "keys = [numpy.int64(1), Split.TRAIN, datetime.date(2026, 1, 1), Path('a'), (1, 'a')]\n"
        "by_key, by_same = dict.fromkeys(keys, 0), {Same('a'): 0, Same('b'): 0}"
    )
    notebook.there("for key in keys: by_key[key] = rank\nby_same[Same('a')] = 1")
    notebook.here("by_key[numpy.int64(1)] = by_key[Split.TEST] = 5\nby_same[Same('b')] = 5")
    for rank, (values, same) in enumerate(
        notebook.ask("([*by_key.values()], [*by_same.values()])")
    ):
        assert values == [5, rank, rank, rank, rank, 5]
        assert same == [0, 5]  # the notebook's


def test_columns_of_a_frame(notebook) -> None:
    notebook.here(
        "import pandas\ndf = pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y'], 'gone': [0, 0]})"
    )
    notebook.there("df['there'] = rank; df.loc[0, 'a'] = 5")
    notebook.here(
        "df['here'] = ['u', 'v']; del df['gone']; df.insert(0, 'first', 1.5); same = [df]"
    )
    columns = "df.to_dict('list'), same[0] is df, df.dtypes.astype(str).to_list()"
    seen = {"a": [5, 2], "b": ["x", "y"], "here": ["u", "v"], "first": [1.5, 1.5]}
    for rank, (found, is_same, _) in enumerate(notebook.ask(f"({columns})")):
        assert found == seen | {"there": [rank, rank]}
        assert is_same
    notebook.here("df['a'] = 0; df['a'] = [1, 2]")  # as they were here
    assert notebook.ask("df['a'].to_list()") == [[1, 2]] * 4
    notebook.here("df.drop(index=0, inplace=True)")
    assert notebook.ask("df.index.to_list(), 'there' in df") == [([1], False)] * 4


def test_a_method_that_only_changes_what_is_inside_leaves_the_rest(notebook) -> None:
    notebook.here(
        "import numpy\n"
        "class Agent:\n"
        "    def __init__(self): self.steps, self.weights = 0, numpy.zeros(2)\n"
        "    def update(self): self.weights += 1\n"
        "    def clear(self): pass\n"
        "agent = Agent()"
    )
    notebook.there("agent.steps += 1; agent.learned = True")
    notebook.here("agent.update()\nagent.clear()")
    seen = notebook.ask("(agent.steps, agent.learned, agent.weights.tolist())")
    assert seen == [(1, True, [1, 1])] * 4


METER = """
class Meter:
    def __init__(self):
        self.best = 0
        self.reset()
    def reset(self):
        self.total, self.log = 0, []
        self.start()
        if self.best > 5:
            self.best = 0
    def start(self): self.begun = True
    def maybe(self):
        return
        self.total = 0
"""


def test_a_method_sets_what_its_source_says(notebook) -> None:
    notebook.here(f"{METER}\nmeter = Meter(); meters = [Meter(), Meter()]")
    seen = "[(each.total, each.log, each.best, each.begun) for each in (meter, *meters)]"
    add = "for each in (meter, *meters): each.total += 1; each.log.append(1); each.best += 1"
    notebook.there(f"{add}; each.begun = False")
    notebook.here("meter.maybe()")
    assert notebook.ask(seen) == [[(1, [1], 1, False)] * 3] * 4
    notebook.here("meter.reset()")
    assert notebook.ask(seen) == [[(0, [], 1, True), *[(1, [1], 1, False)] * 2]] * 4
    loops = "each in meters", "_, each in enumerate(meters)", "each in both.values()"
    for loop in (*loops, "_, each in both.items()", "each in (meters[0], meters[1])"):
        notebook.here(f"both = dict(enumerate(meters))\nfor {loop}: each.reset()")
        assert notebook.ask(seen)[0][1:] == [(0, [], 1, True)] * 2
        notebook.there(
            "for each in meters: each.total += 1; each.log.append(1); each.begun = False"
        )


FUNCTIONS = """
import project_functions
stats, runs = {'seen': 0, 'best': 0}, [{'seen': 0}, {'seen': 0}]
def restart(counts): counts['seen'] = 0
def restart_all(*, counts):
    restart(counts)
    restart_runs(runs)
def restart_runs(all_of_them):
    for each in all_of_them: restart(each)
def maybe(counts):
    if counts['best'] > 5: return
    counts['seen'] = 0
def copied(counts):
    counts = dict(counts)
    counts['seen'] = 0
def steps():
    stats['seen'] = 0
    yield
def enclosing(counts):
    def inner(): counts['seen'] = 0
    return inner
inner = enclosing(stats)
class Trainer:
    def begin(self, counts): restart(counts)
"""


def test_a_function_sets_what_its_source_says(notebook, monkeypatch, tmp_path) -> None:
    source = "def restart(counts): counts['seen'] = 0\ndef again(): TOTAL['seen'] = 0\n"
    (tmp_path / "project_functions.py").write_text(f"{source}TOTAL = {{'seen': 0}}\n")
    monkeypatch.syspath_prepend(tmp_path)
    notebook.here(FUNCTIONS)
    seen = "[each['seen'] for each in (stats, *runs)], stats['best']"
    for cell, after in {
        "restart(stats)": [0, 1, 1],
        "restart(counts=runs[0])": [1, 0, 1],
        "restart_all(counts=stats)": [0, 0, 0],
        "for each in runs: restart(each)": [1, 0, 0],
        "[restart(each) for each in runs]": [1, 0, 0],
        "[restart(each) for each in runs if each is stats]": [1, 1, 1],
        "for each in []: restart_all(counts=stats)": [1, 1, 1],
        "project_functions.restart(stats)": [0, 1, 1],
        "done = Trainer().begin(stats); trainer = Trainer(); trainer.begin(runs[1])": [1, 1, 0],
        "inner()": [0, 1, 1],
        "maybe(stats)": [1, 1, 1],
        "copied(stats)": [1, 1, 1],
        "steps()": [1, 1, 1],
        "(lambda counts: None)(stats)": [1, 1, 1],
    }.items():
        notebook.there("for each in (stats, *runs): each['seen'] = 1\nstats['best'] = 3")
        notebook.here(cell)
        assert notebook.ask(f"({seen})") == [(after, 3)] * 4, cell


@pytest.mark.parametrize("zeros", ["numpy.zeros(2)", "torch.zeros(2)"])
def test_arrays_and_tensors_that_are_set_to_what_they_were(notebook, zeros) -> None:
    notebook.here(
        f"import numpy, torch\nx = {zeros}; state = {{'step': 0, 'x': {zeros}}}\nsame = state['x']"
    )
    add = "x += 1; state['x'] += 1; state['step'] += 1"
    seen = "(x.tolist(), state['x'].tolist(), same is state['x'], state['step'])"
    fill = "x[:] = 0; same[:] = 0" if "numpy" in zeros else "torch.nn.init.zeros_(x); same.zero_()"
    for step, reset in enumerate([fill, "x[:] = 0; state['x'][:] = 0", fill], 1):
        notebook.there(add)
        assert notebook.ask(seen) == [([1, 1], [1, 1], True, step)] * 4
        notebook.here(reset)
        assert notebook.ask(seen) == [([0, 0], [0, 0], True, step)] * 4


def test_arrays_that_functions_and_their_data_set_to_what_they_were(notebook) -> None:
    notebook.here(
        "import numpy, torch\nx, y = numpy.zeros(2), numpy.zeros((2, 2)); z = numpy.zeros(2)\n"
        "t = torch.zeros(2); model = torch.nn.Linear(1, 2)\n"
        "for p in model.parameters(): p.data.zero_()\n"
        "queue = {'seen': 0}\ndef keep(x, out): return out"
    )
    notebook.there(
        "x += 1; y += 1; z += 1; t += 1; queue['seen'] = 1\n"
        "with torch.no_grad():\n"
        "    for p in model.parameters(): p.add_(1); p.requires_grad_(False)"
    )
    notebook.here(
        "numpy.copyto(x, 0); numpy.fill_diagonal(y, 0); numpy.multiply(z, 0, out=z)\n"
        "t.data.zero_(); model.weight.data.fill_(0); keep(x, out=queue)\n"
        "for _, p in model.named_parameters(): p.requires_grad = True"
    )
    seen = "[each.tolist() for each in (x, y, z, t, model.weight, model.bias)], queue['seen']"
    arrays = [[0, 0], [[0, 0], [0, 0]], [0, 0], [0, 0], [[0], [0]], [1, 1]]  # whole ones
    assert notebook.ask(f"({seen})") == [(arrays, 1)] * 4
    assert notebook.ask("[p.requires_grad for p in model.parameters()]") == [[True, True]] * 4
    notebook.here("for p in model.parameters(): p.data.zero_()")
    assert notebook.ask("[p.sum().item() for p in model.parameters()]") == [[0, 0]] * 4


def test_rows_of_frames_and_series_that_are_set_to_what_they_were(notebook) -> None:
    make = "pandas.DataFrame({'a': [0, 0], 'b': [0, 0], 'c': [0, 0]})"
    notebook.here(f"import pandas\ndf, rows, other = {make}, {make}, {make}; s = df['a'].copy()")
    notebook.there("for each in (df, rows, other): each[['a', 'b', 'c']] = 1\ns[:] = 1")
    notebook.here(
        "df.loc[:, 'a'] = 0; df.loc[:, ['b']] = 0\nrows.iloc[0] = 0\ns[:] = 0\n"
        "other.fillna(0, inplace=True)"
    )
    seen = notebook.ask("([each.values.tolist() for each in (df, rows, other)], s.tolist())")
    zeros = [[0, 0, 0], [0, 0, 0]]
    assert seen == [([[[0, 0, 1], [0, 0, 1]], zeros, zeros], [0, 0])] * 4
    notebook.there("df['c'] = 2; s.iloc[1] = 1")
    notebook.here("df.fillna(0, inplace=False)")  # makes another
    assert notebook.ask("df['c'].tolist()") == [[2, 2]] * 4
    notebook.here("s.iloc[1] = 0")
    assert notebook.ask("s.tolist()") == [[0, 0]] * 4


def test_what_ranks_change_by_an_operator_is_changed_by_the_notebook_too(notebook) -> None:
    notebook.here("import numpy; x, rows = numpy.zeros(2), [0]")
    notebook.there("x += 1; rows += [1]")
    notebook.here("numpy.copyto(x, 7); (lambda each: each.append(2))(rows)")
    assert notebook.ask("(x.tolist(), rows)") == [([7, 7], [0, 1, 2])] * 4


def test_generators_that_are_seeded_again(notebook) -> None:
    notebook.here("import random, numpy, torch")
    make = "random.Random(0)", "numpy.random.RandomState(0)", "torch.Generator().manual_seed(0)"
    notebook.here(f"one, two, three = {', '.join(make)}")
    draw = "(one.random(), two.random(), torch.rand(1, generator=three).item())"
    first = notebook.ask(draw)
    assert notebook.ask(draw) != first
    notebook.here("one.seed(0); two.seed(0); three.manual_seed(0)")
    assert notebook.ask(draw) == first


def test_a_loop_sets_what_it_goes_through(notebook) -> None:
    notebook.here("counts, rows, none = {'a': 0, 'b': 0}, [0, 0], {}")
    notebook.there("counts.update(a=1, b=1, c=1); rows[:] = [1, 1, 1]; none['a'] = 1")
    notebook.here(
        "for key in counts: counts[key] = 0\n"
        "for index in range(len(rows)): rows[index] = 0\n"
        "for key in none: none[key] = 0"
    )
    seen = notebook.ask("(counts, rows, none)")
    assert seen == [({"a": 0, "b": 0, "c": 1}, [0, 0, 1], {"a": 1})] * 4


def test_arrays_that_are_made_while_they_are_sent_are_not_taken_for_each_other(notebook) -> None:
    """Each is gone when the next one is made, often at the same address."""
    notebook.here(
        "import numpy\n"
        "class Table:\n"
        "    def __init__(self, value):\n"
        "        self.value = value\n"
        "    def __getstate__(self):\n"
        "        return {'rows': numpy.full(200_000, self.value)}\n"
        "tables = {number: Table(number) for number in range(4)}"
    )
    notebook.there("for each in tables.values(): each.rows[0] = 50")
    notebook.here("tables[0].value = 10")
    asked = notebook.ask("[int(each.rows[0]) for each in tables.values()]")
    assert asked == [[10, 50, 50, 50]] * 4


def test_a_key_of_numpy_is_the_key_that_it_equals(notebook) -> None:
    notebook.here(
        "import numpy\nby = {}\nfor key in numpy.array([0, 1]): by[key] = by[key, 'a'] = 0"
    )
    notebook.there("by[0] = by[1] = by[0, 'a'] = by[1, 'a'] = 5")
    notebook.here("by[0] = by[0, 'a'] = 0")
    assert notebook.ask("[*by.values()]") == [[0, 0, 5, 5]] * 4


def test_what_belongs_to_a_container_but_is_no_part_of_it(notebook) -> None:
    notebook.here(
        "import pandas\nfrom collections import defaultdict\n"
        "table = pandas.DataFrame({'a': [1, 2]})\n"
        "table.columns.name = 'letters'\n"
        "other, by = table[['a']], defaultdict(int, a=0)"
    )
    notebook.there("table.loc[0, 'a'] = by['a'] = 5; other")
    notebook.here(
        "exec('table.attrs.update(unit=1); table.columns.name = None; by.default_factory = list')"
    )
    asked = "table.attrs, table.columns.name, table['a'].tolist(), by['a'], by['b']"
    assert notebook.ask(asked) == [({"unit": 1}, None, [5, 2], 5, [])] * 4


def test_a_class_keeps_what_ranks_made_of_its_data(notebook) -> None:
    notebook.here(
        "class CFG:\n  lr, best, old, hist, opt = .1, 0., 1, [], {'n': 0}\n"
        "  def f(self): return 1\n"
        "class Sub(CFG): hist = CFG.hist\nseen = CFG.opt\nold = CFG"
    )
    notebook.there(
        "CFG.best = rank; CFG.hist.append(rank); CFG.opt['n'] += 1; CFG.there = 2; Sub, old, seen"
    )
    notebook.here("CFG.lr = .01; CFG.hist.append('here'); CFG.new = CFG.hist; del CFG.old")
    has = (
        "(CFG.lr, CFG.best, CFG.hist, CFG.opt['n'], CFG.there, hasattr(CFG, 'old'), CFG().f(), "
        "CFG is old, CFG.new is CFG.hist is Sub.hist, seen is CFG.opt)"
    )
    expected = [(0.01, rank, [rank, "here"], 1, 2, False, 1, True, True, True) for rank in range(4)]
    assert notebook.ask(has) == expected
    notebook.here("CFG.f = lambda self: 2; CFG.opt['lr'] = 1")
    assert notebook.ask("(CFG().f(), CFG.best, CFG.opt)") == [
        (2, rank, {"n": 1, "lr": 1}) for rank in range(4)
    ]
    notebook.there("CFG.best = 9", out=["CFG"])
    notebook.there("CFG.best += rank")
    notebook.here("CFG.lr = 1")
    assert notebook.ask("(CFG.lr, CFG.best)") == [(1, 9 + rank) for rank in range(4)]


def test_a_class_that_is_defined_again_or_pushed_is_the_notebooks(notebook) -> None:
    define = "class CFG: lr, best, hist = .1, 0., []"
    notebook.here(define)
    notebook.there("CFG.best = 1; CFG.hist.append(rank)")
    notebook.here(define)
    notebook.here("CFG.lr = .01")
    assert notebook.ask("(CFG.lr, CFG.best, CFG.hist)") == [(0.01, 0.0, [])] * 4
    notebook.there("CFG.best = 1; CFG.hist.append(rank)")
    notebook.push("CFG")
    assert notebook.ask("(CFG.lr, CFG.best, CFG.hist)") == [(0.01, 0.0, [])] * 4
    notebook.there("CFG.best = 1; CFG.hist.append(rank)")
    notebook.here("CFG.best = 0.; CFG.lr = .1")
    assert notebook.ask("(CFG.lr, CFG.best, CFG.hist)") == [(0.1, 0.0, [rank]) for rank in range(4)]


def test_data_of_a_class_that_is_set_to_what_it_was(notebook) -> None:
    notebook.here("class CFG: lr, best, hist = .1, 0., []")
    notebook.there("CFG.lr = CFG.best = rank + 1; CFG.hist.append(rank)")
    notebook.here("CFG.best = 0.")
    has = "(CFG.lr, CFG.best, CFG.hist)"
    assert notebook.ask(has) == [(rank + 1, 0.0, [rank]) for rank in range(4)]
    notebook.there("CFG.best = 1")
    notebook.here("CFG.hist.clear()")
    assert notebook.ask(has) == [(rank + 1, 1, []) for rank in range(4)]


def test_data_of_a_class_that_ranks_have_by_an_object_only(notebook) -> None:
    notebook.here(
        "class Counter:\n    n = 0\n    def add(self): type(self).n += 1; return self.n\n"
        "c = Counter()"
    )
    assert notebook.ask("c.add()") == [1] * 4
    notebook.here("Counter.n = 0")
    assert notebook.ask("c.add()") == [1] * 4
