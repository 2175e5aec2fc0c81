"""The user's own modules on ranks: imported, edited, and sent where files are not shared."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.events import Display, Output
from jupyter_sky.transport.protocol.messages import Script
from tests.cluster.namespace.notebook import Notebook, open_notebook
from tests.installed import skip_without


@pytest.fixture(scope="module", params=["shared files", "files of its own"])
def cluster(request, tmp_path_factory) -> Iterator[Cluster]:
    """Two ranks, which see the notebook's files or do not."""
    spec = ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}", nodes=2)
    made, runtime_env = assemble(spec, [])
    cluster = Cluster.start(made, Local(shares_files=request.param == "shared files"), runtime_env)
    yield cluster
    cluster.down()


@pytest.fixture
def notebook(cluster, monkeypatch, tmp_path) -> Iterator[Notebook]:
    """A notebook in a folder of its own, with modules beside it."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield open_notebook(cluster, monkeypatch)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(name: str, source: str) -> None:
    path = Path(f"{name}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


@pytest.fixture
def module() -> str:
    """A name that no other test has."""
    return f"mine_{uuid.uuid4().hex[:8]}"


def test_a_cell_imports_what_is_beside_the_notebook(notebook, module) -> None:
    write(module, "def f(): return 'old'")
    notebook.there(f"from {module} import f")
    assert notebook.ask("f()") == ["old"] * 2
    write(module, "def f(): return 'new'")
    assert notebook.ask("f()") == ["new"] * 2


def test_what_the_notebook_has_imported(notebook, module) -> None:
    write(f"{module}/__init__", "")
    write(f"{module}/net", "class Net:\n  def f(self): return 'old'")
    notebook.here(f"import {module}.net as n\nfrom {module}.net import Net\nnet = Net()")
    assert (
        notebook.ask("(net.f(), isinstance(net, Net), n.Net is Net)") == [("old", True, True)] * 2
    )
    notebook.there("net.steps = 1")
    write(f"{module}/net", "class Net:\n  def f(self): return 'new'")
    assert notebook.ask("(net.f(), isinstance(net, Net), net.steps)") == [("new", True, 1)] * 2


def test_an_object_that_the_notebook_and_modules_share(notebook, module) -> None:
    source = (
        "from types import SimpleNamespace\nimport functools\ncfg = SimpleNamespace(rate=1)\n"
        "@functools.cache\ndef version(): return {}"
    )
    write(module, source.format(1))
    write(f"{module}_too", f"from {module} import cfg\ndef rate(): return cfg.rate")
    notebook.here(f"from {module} import cfg, version; import {module}_too as user")
    notebook.there("cfg.rate = 2")
    assert notebook.ask(f"(user.rate(), __import__('{module}').cfg is cfg)") == [(2, True)] * 2
    notebook.here("cfg.rate = 3")
    assert notebook.ask("user.rate()") == [3] * 2
    notebook.there("cfg.rate = 4", out=["cfg"])
    assert notebook.names["user"].rate() == 4
    notebook.there("cfg.rate += 1", ranks=[1])
    assert notebook.ask("user.rate(), cfg.rate, version()") == [(4, 4, 1), (5, 5, 1)]
    write(module, source.format(20))
    write(f"{module}_too", f"from {module} import cfg\ndef rate(): return -cfg.rate")
    assert notebook.ask("user.rate(), cfg.rate, version()") == [(-4, 4, 20), (-5, 5, 20)]


REGISTRY = """
_models = {}
def register(cls):
    _models[cls.__name__] = cls
    return cls

class Registry:
    def __init__(self): self._losses = []
    def add(self, function): self._losses.append(function)
losses = Registry()

class Base:
    known = {}
    def __init_subclass__(cls): Base.known[cls.__name__] = cls

def build(name): return _models[name]().f(), losses._losses[-1](2), Base.known[name].__name__
"""


def test_what_a_module_has_collected_of_the_notebook(notebook, module) -> None:
    write(module, REGISTRY)
    notebook.here(
        f"from {module} import Base, build, losses, register\n"
        "@register\nclass Net(Base):\n  def f(self): return 'net'\n"
        "@losses.add\ndef loss(x): return x * two\n"
        "two = 2"
    )
    assert notebook.ask("build('Net')") == [("net", 4, "Net")] * 2
    notebook.here("@register\nclass Other(Base):\n  def f(self): return Net().f()")
    assert notebook.ask("build('Other')") == [("net", 4, "Other")] * 2
    notebook.there("@register\nclass Own(Base):\n  def f(self): return 'own'")
    notebook.here("@register\nclass Last(Base):\n  def f(self): return 'last'")
    # Also by way of another module; what ranks have collected themselves stays.
    write(f"{module}_too", f"from {module} import build as make")
    notebook.here(f"import {module}_too as too")
    assert notebook.ask("too.make('Last')") == [("last", 4, "Last")] * 2
    assert notebook.ask("too.make('Own')") == [("own", 4, "Own")] * 2


def test_an_array_that_is_mapped_from_a_file(notebook, cluster, tmp_path) -> None:
    """Ranks that see the file have it mapped too; others have a copy."""
    notebook.here(
        "import numpy as np\n"
        "whole = np.memmap('data', 'i8', 'w+', shape=(3000, 2))\n"
        "part, every = whole[2000:], whole.T\n"
        "kept = np.memmap('data', 'i8', 'r', shape=6000)\n"
        "private, computed = np.memmap('data', 'i8', 'c', shape=6000), whole + 1"
    )
    seen = cluster.sync.shares_files
    notebook.there(
        "part[0] = every[1, 5] = 7; private[0] = computed[0, 0] = 9; assert kept[0] == 0"
    )
    assert notebook.names["whole"][[2000, 5]].tolist() == (
        [[7, 7], [0, 7]] if seen else [[0, 0]] * 2
    )
    notebook.here("whole[1] = 5")
    assert notebook.ask("(int(kept[3]), kept.flags.writeable)") == [(5, not seen)] * 2
    notebook.here("import os; os.remove('data'); whole = np.memmap('data', 'i8', 'w+', shape=2)")
    assert notebook.ask("whole.tolist()") == [[0, 0]] * 2


def test_a_dataset_that_is_mapped_from_a_file(notebook, cluster) -> None:
    """Ranks that see the file read it there; others have a copy, as the notebook has of theirs."""
    skip_without("datasets")
    notebook.here(
        "import datasets\ndatasets.disable_progress_bars()\n"
        "def stored(folder, numbers):\n"
        "  datasets.Dataset.from_dict({'n': numbers}).save_to_disk(folder)\n"
        "  return datasets.load_from_disk(folder)\n"
        "data = stored('here', [1, 2, 3])"
    )
    said = "(data.select([2, 0])['n'][:], bool(data.cache_files))"
    assert notebook.ask(said) == [([3, 1], cluster.sync.shares_files)] * 2
    notebook.there("import tempfile\nmade = stored(tempfile.mkdtemp(), [4, 5])", gather=["made"])
    made = notebook.names["made"]
    assert [each["n"][:] for each in made] == [[4, 5]] * 2
    assert [bool(each.cache_files) for each in made] == [cluster.sync.shares_files] * 2


def test_enums_and_sentinels_of_modules(notebook, module) -> None:
    source = (
        "from enum import Enum\nclass Mode(Enum):\n  A = 1\n"
        "MISSING = object()\ndef is_missing(x=MISSING): return x is MISSING\n"
    )
    write(module, source)
    notebook.here(f"import {module} as m\nfrom {module} import Mode, MISSING, is_missing")
    notebook.here("mode, missing = Mode.A, MISSING")
    seen = "(mode is Mode.A, is_missing(missing), is_missing(MISSING), is_missing(), mode.value)"
    notebook.there(f"back, seen = [missing], {seen}", out=["back", "seen"])
    assert notebook.names["back"] == [notebook.names["MISSING"]]
    assert notebook.names["seen"] == (True, True, True, True, 1)
    write(module, source.replace("A = 1", "A, B = 2, 1"))
    notebook.here("import importlib; from IPython.extensions.autoreload import superreload")
    notebook.here("superreload(m, importlib.reload, {})")
    assert (
        notebook.ask("(mode is Mode.A is m.Mode.A, mode.value, Mode.B.value)") == [(True, 2, 1)] * 2
    )


def test_objects_from_before_the_notebook_has_loaded_a_module_again(notebook, module) -> None:
    source = "class Net:\n  def f(self): return '{}'"
    write(module, source.format("old"))
    notebook.here(f"import {module} as m\nfrom {module} import Net\nnet = Net()")
    notebook.there("net.f(), Net")
    write(module, source.format("newer"))
    notebook.here(f"import importlib; importlib.reload(m); from {module} import Net")
    seen = "(net.f(), Net().f(), isinstance(net, Net))"
    notebook.here(f"here = {seen}")
    assert notebook.ask(seen) == [notebook.names["here"]] * 2 == [("old", "newer", False)] * 2


def test_what_ranks_have_made_of_objects_whose_module_is_loaded_again(notebook, module) -> None:
    """As with a model that they train, and its settings, while its file is edited."""
    skip_without("torch")
    source = (
        "import dataclasses, torch\n"
        "class Part(torch.nn.Linear):\n"
        "  def forward(self, x): return super().forward(x) * 0 + {0}\n"
        "class Net(torch.nn.Module):\n"
        "  def __init__(self): super().__init__(); self.part = Part(1, 1)\n"
        "  def forward(self, x): return self.part(x)\n"
        "@dataclasses.dataclass\nclass Config:\n  step: int = 0\n  rate: float = 0.5\n"
        "  def f(self): return {0}\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Frozen:\n  seen: list\n  def f(self): return {0}\n"
    )
    write(module, source.format(1))
    notebook.here(f"import torch, {module} as m\nfrom {module} import Config, Frozen, Net")
    notebook.here("net, config, both = Net(), Config(), Frozen([1])")
    notebook.there(
        "optimizer, kept = torch.optim.SGD(net.parameters()), config\n"
        "with torch.no_grad(): net.part.bias.fill_(7)\n"
        "config.step += 3; both.seen.append(2)"
    )
    write(module, source.format(2))
    notebook.here(f"import importlib; importlib.reload(m); from {module} import Net")
    trained = (
        "(net.part.bias.item(), optimizer.param_groups[0]['params'][1] is net.part.bias,"
        " config.step, kept is config, both.seen)"
    )
    code = "(net(torch.ones(1)).item(), Net()(torch.ones(1)).item(), config.f(), both.f())"
    notebook.here(f"here = {code}")
    assert notebook.names["here"] == (1, 2, 1, 1)
    assert notebook.ask(trained) == [(7, True, 3, True, [1, 2])] * 2
    assert notebook.ask(code) == [(1, 2, 1, 1)] * 2
    notebook.here("config.rate = 0.1; net.eval()")
    seen = "(config.step, config.rate, net.training, net.part.bias.item())"
    assert notebook.ask(seen) == [(3, 0.1, False, 7)] * 2
    notebook.there("config.step += 1", out=["net", "config"])
    notebook.here("back = net.part.bias.item(), config.step, config.f(), net(torch.ones(1)).item()")
    assert notebook.names["back"] == (7, 4, 1, 1)


def test_a_module_that_only_a_function_imports(notebook, module) -> None:
    write(module, "x = 3")
    notebook.here(f"def f():\n  import {module}\n  return {module}.x")
    assert notebook.ask("f()") == [3] * 2


def test_a_module_that_another_module_imports(notebook, module) -> None:
    write(module, f"import {module}_too\ndef f(): return {module}_too.x")
    write(f"{module}_too", "x = 1")
    notebook.there(f"import {module}")
    assert notebook.ask(f"{module}.f()") == [1] * 2
    write(f"{module}_too", "x = 2")
    assert notebook.ask(f"{module}.f()") == [2] * 2


def test_a_path_that_is_added_later(notebook, module, tmp_path, monkeypatch) -> None:
    write(f"elsewhere/{module}", "x = 1")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    notebook.here(f"from {module} import x")
    notebook.there(f"from {module} import x as y")
    assert notebook.ask("(x, y)") == [(1, 1)] * 2


def test_a_mistake_in_an_edit_is_an_error_of_the_cell(notebook, module) -> None:
    write(module, "x = 1")
    notebook.there(f"import {module}")
    write(module, "x = (")
    with pytest.raises(RemoteError) as raised:
        notebook.there(f"{module}.x")
    assert f'{module}.py", line 1\n    x = (\n        ^\n' in raised.value.remote_traceback
    write(module, "x = 2")
    assert notebook.ask(f"{module}.x") == [2] * 2


def test_what_needs_no_module_of_a_mistaken_edit_goes_on(notebook, module) -> None:
    write(module, "x = 1\nclass Net: pass")
    notebook.there(f"import {module}\nnet = [{module}.Net()]")
    write(module, "x = (")
    said = f"{module} was edited and cannot be loaded, so it stays as it was: SyntaxError: "
    assert notebook.printed("print(1)").startswith(said)
    with pytest.raises(RemoteError):
        notebook.there("net")
    # A script loads what it needs by itself.
    script: Script = {
        **{"text": "echo here", "env": {}, "folders": [], "cwd": None},
        **{"together": False, "port": 0},
    }
    run = notebook.cluster.run(Task((0,), script=script, show=(0,)))
    run.begin()
    printed: list[Output | Display] = []
    run.follow(printed.append)
    run.check()
    assert [event.data for event in printed if isinstance(event, Output)] == [b"here\n"]


def test_what_is_unchanged_is_not_sent_again(notebook, module) -> None:
    write(module, "x = 1")
    notebook.there(f"import {module}")
    assert notebook.start(f"import {module}").task.update.groups == []


def test_what_a_module_holds_stays_if_it_is_not_edited(notebook, module) -> None:
    write(f"{module}/__init__", "held = []")
    write(f"{module}/part", "def f(): return 1")
    notebook.there(f"import {module}.part\n{module}.held.append(1)")
    assert notebook.ask(f"({module}.held, {module}.part.f())") == [([1], 1)] * 2
    write(f"{module}/part", "def f(): return 2")
    assert notebook.ask(f"({module}.held, {module}.part.f())") == [([1], 2)] * 2


def test_a_file_beside_a_module(notebook, module, cluster) -> None:
    if not cluster.sync.shares_files:
        write(f"{module}/__init__", "from pathlib import Path\nhere = Path(__file__).parent")
        Path(f"{module}/words.txt").write_text("some words")
    else:
        write(module, "from pathlib import Path\nhere = Path(__file__).parent")
        Path("words.txt").write_text("some words")
    notebook.there(f"import {module}")
    assert notebook.ask(f"({module}.here / 'words.txt').read_text()") == ["some words"] * 2
