"""What a ``%%sky`` cell shows and brings back, in a real notebook."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.installed import skip_without
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until


def test_lines_of_the_head_arrive_while_the_cell_runs(pair: LiveNotebook, tmp_path: Path) -> None:
    seen = tmp_path / "the line was seen"
    cell = pair.start(
        "%%sky\n"
        "for epoch in range(2):\n"
        "    print(f'epoch {epoch}')\n"
        f"    while not os.path.exists({str(seen)!r}):\n"
        "        time.sleep(0.01)\n"
    )
    pair.until(cell, lambda cell: "epoch 0\n" in cell.stdout)
    assert cell.stdout == "epoch 0\n"
    seen.touch()
    assert pair.finish(cell).stdout == "epoch 0\nepoch 1\n"
    assert cell.error is None


def test_a_line_without_end_arrives_while_the_cell_runs(pair: LiveNotebook, tmp_path: Path) -> None:
    seen = tmp_path / "the line was seen"
    cell = pair.start(
        "%%sky\nprint('50 %', end='')\n"
        f"while not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)\n"
    )
    pair.until(cell, lambda cell: cell.stdout == "50 %")
    seen.touch()
    assert pair.finish(cell).error is None


def test_the_group_is_formed_before_the_first_cell(opened) -> None:
    notebook = opened()
    cell = notebook.succeed(
        "%%sky --nodes 4 --gather ranks,total\n"
        "import torch, torch.distributed as dist\n"
        "ranks, total = (dist.is_initialized(), dist.get_rank()), torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "total = total.item()"
    )
    assert notebook.value("ranks") == [(True, 0), (True, 1), (True, 2), (True, 3)]
    assert notebook.value("total") == [4.0] * 4
    [progress] = cell.shown
    assert "4 local nodes, 4 ranks on CPU, group formed with torch" in progress


def test_the_last_expression_of_the_head_is_shown(pair: LiveNotebook) -> None:
    assert pair.succeed("%%sky\nrank, 'is here'").shown == ["(0, 'is here')"]
    assert pair.succeed("%%sky\nrank;").shown == []
    assert pair.succeed("%%sky\nx = rank").shown == []


def test_what_is_displayed_is_shown(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky\n"
        "from IPython.display import display\n"
        "handle = display('one', display_id=True)\n"
        "display('two')\n"
        "handle.update('three')"
    )
    assert cell.shown == ["'three'", "'two'"]


def test_out_binds_the_value_of_the_head_and_gather_one_a_rank(pair: LiveNotebook) -> None:
    pair.succeed("%%sky --out alone,both --gather each\nalone = both = each = rank + 10")
    assert pair.value("alone, both, each") == (10, 10, [10, 11])


def test_what_a_branch_leaves_alone_comes_back_as_it_is_here(pair: LiveNotebook) -> None:
    pair.succeed("left = [1]\nbest = None")
    pair.succeed("%%sky --out left\nleft")
    pair.succeed("left.append(2)")
    branch = "if rank > 5:\n    left, best = [], rank"
    pair.succeed(f"%%sky --out left,best\n{branch}")
    assert pair.value("left, best") == ([1, 2], None)


def test_a_trained_model_comes_back_out_of_its_wrapper(pair: LiveNotebook) -> None:
    pair.succeed(
        "%%sky --out model\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "torch.manual_seed(0)\n"
        "model = DDP(torch.nn.Linear(3, 1))\n"
        "model(torch.ones(1, 3)).sum().backward()"
    )
    assert pair.value("type(model).__name__, tuple(model.weight.shape)") == ("Linear", (1, 3))
    pair.succeed("import torch")
    assert pair.value("model(torch.ones(1, 3)).shape == (1, 1)")


def test_lines_of_several_ranks_say_whose_they_are(pair: LiveNotebook) -> None:
    cell = pair.succeed("%%sky --stdout all\nprint('I am', rank)")
    assert sorted(cell.stdout.splitlines()) == ["0 │ I am 0", "1 │ I am 1"]
    assert pair.succeed("%%sky --stdout 1\nprint('I am', rank)").stdout == "I am 1\n"
    assert pair.succeed("%%sky --stdout none\nprint('I am', rank)").stdout == ""


def test_a_cell_on_some_ranks_shows_the_first_of_them(pair: LiveNotebook) -> None:
    cell = pair.succeed("%%sky --ranks 1 --gather only\nonly = rank\nprint('I am', rank)")
    assert cell.stdout == "I am 1\n"
    assert pair.value("only") == [1]


def test_a_cell_on_some_ranks_shows_no_others(pair: LiveNotebook) -> None:
    for shown in ("head", "all", "0,1", "0"):
        cell = pair.succeed(f"%%sky --ranks 1 --stdout {shown}\nprint('I am', rank)")
        assert cell.stdout == "I am 1\n"


def test_programs_and_c_code_write_to_the_cell(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky\n"
        "import ctypes, sys\n"
        "print('python')\n"
        "!echo shell $SKYPILOT_NODE_RANK\n"
        "_ = ctypes.CDLL(None).puts(b'C code'), ctypes.CDLL(None).fflush(None)\n"
        "print('error', file=sys.stderr)"
    )
    assert cell.stdout == "python\nshell 0\nC code\n"
    assert cell.stderr == "error\n"


def test_warnings_and_printed_tracebacks_say_which_cell_they_are_from(pair: LiveNotebook) -> None:
    pair.succeed("import traceback, warnings\n\ndef step():\n    warnings.warn('small')")
    said = pair.succeed(
        "%%sky\n\n\nwarnings.warn('large')\nstep()\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()"
    ).stderr
    printed = re.search(r'File "<ipython-input-(\d+)-\w+>", line 7, in <module>\n +1 / 0\n', said)
    assert printed, said
    second = int(printed[1])
    assert f"Cell In[{second}], line 4: UserWarning: large\n  warnings.warn('large')\n" in said
    assert f"Cell In[{second - 1}], line 4: UserWarning: small\n  warnings.warn('small')\n" in said


def test_a_whole_cell_of_shell(pair: LiveNotebook) -> None:
    cell = pair.succeed("%%sky --stdout all\n%%bash\necho node $SKYPILOT_NODE_RANK")
    assert sorted(cell.stdout.splitlines()) == ["0 │ node 0", "1 │ node 1"]
    failed, here = (pair.run(f"{magic}%%bash\nexit 3") for magic in ("%%sky\n", ""))
    [*said, ranks] = failed.traceback.splitlines()
    assert ranks.startswith("on ranks 0-1")
    shown = here.traceback.replace("--> 1 ", "--> 2 ").splitlines()
    assert said[3:] == shown[3:], "without calls that are not the user's"


def test_programs_of_a_cell_do_not_join_the_group_of_its_rank(pair: LiveNotebook) -> None:
    own = "RANK WORLD_SIZE LOCAL_RANK MASTER_PORT TORCH_NCCL_ASYNC_ERROR_HANDLING"
    own += " ACCELERATE_USE_CPU"
    ask = f"printenv {own} MASTER_ADDR SKYPILOT_NODE_RANK MINE"
    shown = ["127.0.0.1", "0", "of mine"]
    pair.succeed("%%sky\nos.environ['MINE'] = 'of mine'")
    for cell in (
        f"!{ask}",
        f"print(*get_ipython().getoutput({ask!r}), sep='\\n')",
        f"found = !{ask}\nprint(found.nlstr)",
        f"%%bash\n{ask} || true",
        f"%%script --no-raise-error sh -e\n{ask}",
    ):
        assert pair.succeed(f"%%sky\n{cell}").stdout.splitlines() == shown
    pair.succeed(f"%%sky --out text\n%%sh --out text\n{ask} || true")
    assert pair.value("text.splitlines()") == shown
    cell = pair.succeed("%%sky\n%%script no-such-program --option\nprint(1)\n")
    assert "Couldn't find program: 'no-such-program'" in cell.stderr + cell.stdout
    assert "of mine" not in pair.run("%%sky\n%%script\nprint(1)\n").stdout
    # What Python starts has it all, as anywhere.
    program = "import os; print(os.environ['RANK'])"
    cell = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}])"
    assert pair.succeed(f"%%sky\n{cell};").stdout == "0\n"


def test_names_travel_and_stay(pair: LiveNotebook) -> None:
    pair.succeed("step = 3\ndef forward(count):\n    return count + step")
    pair.succeed("%%sky\ncount = forward(rank)")
    pair.succeed("%%sky --gather found\ncount += 1\nfound = count")
    assert pair.value("found") == [4, 5]
    pair.succeed("step = 10")
    pair.succeed("%%sky --gather found\nfound = forward(rank)")
    assert pair.value("found") == [10, 11]


CONFIG = """
rate, sizes, modes, tone = 0.1, {"a": 1}, {}, "low"
steps, names = [1], {"a": 1}

class Step:
    every = 1

    def size(self):
        return self.every
"""


def test_what_the_notebook_sets_in_a_module_travels(pair: LiveNotebook) -> None:
    file = pair.path.parent / "settings_of_mine.py"
    file.write_text(CONFIG)
    pair.succeed("import settings_of_mine as mine\nfrom settings_of_mine import Step")
    seen = "%%sky\nmine.rate, mine.sizes, Step().size()"
    assert pair.succeed(seen).shown == ["(0.1, {'a': 1}, 1)"]
    pair.succeed("mine.rate = 0.5; mine.sizes['b'] = 2; Step.every = 3")
    assert pair.succeed(seen).shown == ["(0.5, {'a': 1, 'b': 2}, 3)"]
    pair.succeed("half = 2\ndef size(self): return self.every / half\nStep.size = size")
    pair.succeed("%%sky\nmine.rate = 0.7")
    assert pair.succeed(seen).shown == ["(0.7, {'a': 1, 'b': 2}, 1.5)"]
    pair.succeed("import torch; mine.rate = 0.5; mine.model = torch.nn.Linear(1, 1)")
    assert pair.succeed(seen).shown == ["(0.5, {'a': 1, 'b': 2}, 1.5)"]
    pair.succeed("%%sky\nfirst = mine.model.weight")
    pair.succeed("mine.model.eval()\nmine.lock = __import__('threading').Lock()")
    cell = pair.succeed("%%sky\nmine.model.training, mine.model.weight is first")
    assert cell.shown == ["(False, True)"]
    pair.succeed("from settings_of_mine import modes; modes['x'] = 1")
    assert pair.succeed("%%sky\nmine.modes").shown == ["{'x': 1}"]
    pair.succeed("mine.steps.append(2); del mine.names['a']; setattr(mine, 'kind', 'set')")
    cell = pair.succeed("%%sky\nmine.steps, mine.names, getattr(mine, 'kind', 0)")
    assert cell.shown == ["([1, 2], {}, 'set')"]
    pair.succeed(
        "def override(**values):\n    for name in values: setattr(mine, name, values[name])\n"
        "override(tone='high')\nvars(mine).update(steps=[3])"
    )
    assert pair.succeed("%%sky\nmine.steps, mine.tone").shown == ["([3], 'high')"]
    pair.succeed("override(tone='higher')")
    assert pair.succeed("%%sky\nmine.steps, mine.tone").shown == ["([3], 'higher')"]
    file.write_text(f"{CONFIG}\nadded = 1")
    cell = pair.succeed(f"{seen}, mine.model.weight is first, mine.added")
    assert cell.shown == ["(0.5, {'a': 1, 'b': 2}, 1.5, True, 1)"]


def test_what_is_set_in_a_module_before_the_extension_is_loaded_travels(pair: LiveNotebook) -> None:
    (pair.path.parent / "early_settings.py").write_text(CONFIG)
    pair.succeed("%unload_ext jupyter_sky")
    pair.succeed("import early_settings as early\nearly.rate = 0.5")
    pair.succeed("early.Step.every = 3\n%load_ext jupyter_sky\nearly.sizes['b'] = 2")
    cell = pair.succeed("%%sky\nearly.rate, early.sizes, early.Step().size()")
    assert cell.shown[-1] == "(0.5, {'a': 1, 'b': 2}, 3)"


def test_functions_of_modules_are_put_back_on_ranks_too(pair: LiveNotebook) -> None:
    file = pair.path.parent / "functions_of_mine.py"
    file.write_text("def f(): return 'own'\n")
    pair.succeed("import torch, functions_of_mine as mine\nfrom torch.nn import Identity")
    pair.succeed("own, forward = mine.f, Identity.forward\ndef fake(*_): return 'fake'")
    seen = "%%sky\nmine.f(), Identity()(rank)"
    pair.succeed("mine.f = Identity.forward = fake")
    assert pair.succeed(seen).shown == ["('fake', 'fake')"]
    pair.succeed("mine.f, Identity.forward = own, forward")
    assert pair.succeed(seen).shown == ["('own', 0)"]
    pair.succeed("mine.f = fake")
    file.write_text("def f(): return 'edited'\n")
    assert pair.succeed(seen).shown == ["('fake', 0)"]
    pair.succeed("mine.f = own")
    assert pair.succeed(seen).shown == ["('edited', 0)"]


def test_figures_tables_and_html_are_shown_as_such(pair: LiveNotebook) -> None:
    skip_without("matplotlib")
    figure = pair.succeed(
        "%%sky\n%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1]);"
    )
    assert [data.keys() for data in figure.data] == [{"text/plain", "image/png"}]
    table = pair.succeed("%%sky\nimport pandas as pd\npd.DataFrame({'rank': [rank]})")
    assert "<table" in table.data[0]["text/html"]
    cell = pair.succeed("%%sky\nfrom IPython.display import HTML\nHTML('<b>bold</b>')")
    assert cell.data[0]["text/html"] == "<b>bold</b>"


def test_a_figure_that_came_back_is_a_picture_in_a_notebook_that_made_none(opened) -> None:
    skip_without("matplotlib")
    notebook = opened()
    code = "import matplotlib.pyplot as plt\nfigure = plt.subplots()[0]\nplt.close()"
    for asked, shown in (("--out", "figure"), ("--gather", "figure[0]")):
        notebook.succeed(f"%%sky --nodes 1 --plugin none {asked} figure\n{code}")
        cell = notebook.succeed(shown)
        assert [data.keys() for data in cell.data] == [{"text/plain", "image/png"}]


def test_it_is_shown_as_the_notebook_is_set_up_to_show_it(pair: LiveNotebook) -> None:
    skip_without("matplotlib")
    pair.succeed(
        "import matplotlib.pyplot as plt\n%config InlineBackend.figure_formats = ['svg']\n"
        "%precision 2\n%xmode Minimal\n%config InteractiveShell.ast_node_interactivity = 'all'"
    )
    cell = pair.succeed("%%sky\n1 / 3\n2 / 3\nlines = plt.plot([1])")
    assert cell.shown[:2] == ["0.33", "0.67"]
    assert "image/svg+xml" in cell.data[-1]
    assert pair.run("%%sky\n1 / 0").traceback.startswith("ZeroDivisionError: division by zero")
    pair.succeed(
        "%config InlineBackend.figure_formats = ['png']\n"
        "%precision\n%xmode Context\n%config InteractiveShell.ast_node_interactivity = 'last_expr'"
    )
    cell = pair.succeed("%%sky\n1 / 3\n2 / 3")
    assert cell.shown == ["0.6666666666666666"]
    assert "1 / 0" in pair.run("%%sky\n1 / 0").traceback


def test_what_several_ranks_display_says_whose_it_is(pair: LiveNotebook) -> None:
    cell = pair.succeed("%%sky --stdout all\nfrom IPython.display import HTML\n{'rank': rank}")
    assert sorted(cell.stdout.splitlines()) == ["0 │ {'rank': 0}", "1 │ {'rank': 1}"]
    cell = pair.succeed("%%sky --stdout all\ntime.sleep(0.1 - 0.1 * rank)\nHTML(f'<b>{rank}</b>')")
    assert [data["text/html"] for data in cell.data] == [
        "<strong>rank 0</strong>",
        "<b>0</b>",
        "<strong>rank 1</strong>",
        "<b>1</b>",
    ]


def test_a_rank_updates_its_own_display_alone(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky --stdout all\n"
        "from IPython.display import HTML, display, update_display\n"
        "display(HTML(f'{rank} begins'), display_id='bar')\n"
        "update_display(HTML(f'{rank} ends'), display_id='bar')"
    )
    assert [data["text/html"] for data in cell.data] == [
        "<strong>rank 0</strong>",
        "0 ends",
        "<strong>rank 1</strong>",
        "1 ends",
    ]


def test_a_rank_clears_its_own_output_alone(pair: LiveNotebook) -> None:
    plot = (
        "%%sky --stdout all\n"
        "from IPython.display import HTML, clear_output, display\n"
        "if rank == 1:\n    print('of rank 1')\n"
        "for step in range(3):\n"
        "    dist.barrier()\n"
        "    if rank in {ranks}:\n        clear_output(wait={wait})\n"
        "    display(HTML(f'<p>{{step}}</p>'))\n    print('step', step)"
    )
    for wait in (True, False):
        cell = pair.succeed(plot.format(ranks=(0, 1), wait=wait))
        assert sorted(cell.stdout.splitlines()) == ["0 │ step 2", "1 │ step 2"]
        shown = [data["text/html"] for data in cell.data]
        assert shown == [
            "<strong>rank 0</strong>",
            "<p>2</p>",
            "<strong>rank 1</strong>",
            "<p>2</p>",
        ]
    cell = pair.succeed(plot.format(ranks=(0,), wait=True))
    lines = ["0 │ step 2", "1 │ of rank 1", *(f"1 │ step {step}" for step in range(3))]
    assert sorted(cell.stdout.splitlines()) == sorted(lines)


@pytest.mark.parametrize("wait", [True, False])
def test_a_loop_that_clears_very_often_ends_with_what_came_last(
    pair: LiveNotebook, wait: bool
) -> None:
    cell = pair.succeed(
        "%%sky\nfrom IPython.display import clear_output\n"
        f"for step in range(1500):\n    clear_output(wait={wait})\n    print('step', step)"
    )
    assert cell.stdout == "step 1499\n"


def test_text_with_a_place_is_updated_there_below_its_label(pair: LiveNotebook) -> None:
    code = (
        "from IPython.display import display\n"
        "handle = display('begins', display_id=True)\n"
        "display('beside it')\n"
        "handle.update(f'{rank} ends')"
    )
    for options in ("--stdout all", "--stdout all --display safe"):
        cell = pair.succeed(f"%%sky {options}\n{code}")
        assert cell.shown == ["0 │ '0 ends'", "1 │ '1 ends'"]
        assert cell.stdout.splitlines() == ["0 │ 'beside it'", "1 │ 'beside it'"]


@pytest.mark.parametrize("meanwhile", ["pass", "rank or print('busy')"], ids=["quiet", "busy"])
def test_a_rank_that_displays_alone_is_shown_while_the_cell_runs(
    pair: LiveNotebook, tmp_path: Path, meanwhile: str
) -> None:
    seen = tmp_path / "it was seen"
    cell = pair.start(
        "%%sky --stdout all\n"
        "from IPython.display import HTML, display\n"
        "if rank == 1:\n"
        "    display(HTML('<b>alone</b>'))\n"
        "    print('below it')\n"
        f"while not os.path.exists({str(seen)!r}):\n"
        f"    {meanwhile}\n"
        "    time.sleep(0.01)"
    )
    pair.until(cell, lambda cell: "1 │ below it\n" in cell.stdout)
    assert cell.data[-1]["text/html"] == "<b>alone</b>"
    seen.touch()
    assert pair.finish(cell).error is None


BARS = """%%sky
from tqdm.auto import tqdm
for epoch in range(3):
    for step in tqdm(range(4), desc=f'epoch {epoch}'):
        pass
    print('loss', epoch)"""


def test_bars_and_lines_come_in_the_order_in_which_they_were_written(pair: LiveNotebook) -> None:
    skip_without("tqdm")
    cell = pair.succeed(BARS)
    assert cell.stdout == "loss 0\nloss 1\nloss 2\n" and cell.stderr == ""
    bars = [text.partition(":")[0] for text in cell.shown]
    assert bars == ["epoch 0", "epoch 1", "epoch 2"]
    assert all("4/4" in text for text in cell.shown)
    kinds = [kind for kind in cell.order if kind in ("display_data", "stream")]
    assert kinds == ["display_data", "stream"] * 3


def test_the_two_streams_come_in_order(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky\nimport sys\nfor step in range(20):\n"
        "    print('out', step)\n    print('err', step, file=sys.stderr)"
    )
    assert cell.order.count("stream") == 40


def test_bars_and_widgets_that_need_a_page_become_text(pair: LiveNotebook) -> None:
    skip_without("ipywidgets")
    cell = pair.succeed(
        "%%sky\nfrom tqdm.notebook import tqdm\nfor step in tqdm(range(3)):\n    pass"
    )
    assert "tqdm.notebook shows bars as text on ranks" in cell.stderr
    assert ["3/3" in text for text in cell.shown] == [True]
    cell = pair.succeed("%%sky\nimport ipywidgets\nipywidgets.IntSlider(3)")
    [text] = cell.shown
    assert text.startswith("IntSlider is a widget, which a rank cannot show")
    pair.succeed("import ipywidgets\nsettings = {'lr': ipywidgets.FloatSlider()}")
    assert "settings['lr'] cannot be sent" in (said := pair.run("%%sky\nsettings").sentence)
    assert said.endswith("give the cell what it holds, as in `rate = slider.value`.")


def test_a_cell_may_await_and_use_magics(pair: LiveNotebook) -> None:
    cell = pair.succeed(
        "%%sky\nimport asyncio\nprint(await asyncio.sleep(0, 'awaited'))\n"
        "%time x = 3\nfiles = !echo one two\nfiles"
    )
    assert cell.stdout.startswith("awaited\nCPU times")
    assert cell.shown == ["['one two']"]


def test_tasks_that_a_cell_leaves_go_on_between_cells(pair: LiveNotebook, tmp_path: Path) -> None:
    done = tmp_path / "done"
    pair.succeed(
        "%%sky --ranks 0\nimport asyncio, pathlib\n"
        "async def work():\n"
        "    await asyncio.sleep(0)\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "    return 'worked'\n"
        "async def begin(): return await asyncio.create_task(work())\n"
        "task = asyncio.create_task(work())"
    )
    until(done.exists)
    # A cell that awaits nothing may run a loop of its own, as scripts do.
    cell = pair.succeed("%%sky --ranks 0\nprint(task.result(), asyncio.run(begin()))")
    assert cell.stdout == "worked worked\n"
    cell = pair.run("%%sky\nimport asyncio\ndef later():\n    asyncio.get_running_loop()\nlater()")
    assert cell.traceback.endswith("write `await` in this cell, as in `await asyncio.sleep(0)`")


def test_the_next_cell_says_what_was_printed_when_none_ran(
    pair: LiveNotebook, tmp_path: Path
) -> None:
    pair.succeed(
        "%%sky --ranks 0\n"
        "import asyncio, pathlib, threading\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def say(name): print(f'the {name}\\ngoes on'); (folder / name).touch()\n"
        "def thread():\n"
        "    while not (folder / 'ended').exists(): time.sleep(0.01)\n"
        "    say('thread')\n"
        "async def task():\n"
        "    while not (folder / 'thread').exists(): await asyncio.sleep(0.01)\n"
        "    say('task')\n"
        "threading.Thread(target=thread).start()\n"
        "kept = asyncio.create_task(task())"
    )
    (tmp_path / "ended").touch()
    until((tmp_path / "task").exists)
    cell = pair.succeed("%%sky --ranks 0\nprint('here')")
    assert cell.stdout == "here\n"
    assert cell.stderr == (
        "rank 0 printed 4 lines after its last cell had ended: `%sky logs 0` shows them.\n"
    )
    assert "the thread\ngoes on\nthe task\ngoes on\n" in pair.succeed("%sky logs 0").stdout
    assert pair.succeed("%%sky --ranks 0\nprint('here')").stderr == ""


def test_a_flood_is_thinned_in_the_cell_and_complete_in_the_log(
    pair: LiveNotebook, tmp_path: Path
) -> None:
    cell = pair.succeed(
        "%%sky\nfor number in range(200_000): print('line', number)\n"
        "print('x' * 50_000_000)\nos.write(1, bytes(range(256)) + b'\\n');"
    )
    # The beginning as it came, and one display with the end.
    assert cell.stdout.startswith("line 0\nline 1\n")
    assert "\n\n" not in cell.stdout
    [end] = cell.shown
    notice, _, shown = end.partition("\n")
    assert re.fullmatch(r"\[… [\d,]+ lines, 5[\d.]+ MB not shown here: .* …\]", notice)
    assert "`%sky logs 0 --save FILE` has all of them" in notice
    assert shown.endswith("~\x7f" + 128 * "\N{REPLACEMENT CHARACTER}")
    # What passes before the first gap is a matter of time; all together is 50 MB.
    assert len(cell.stdout) + len(end) < 500_000
    log = tmp_path / "rank 0.log"
    saved = pair.succeed(f"%sky logs 0 --save '{log}'")
    data = log.read_bytes()
    assert saved.stdout == f"saved the log of rank 0 to {log}: {len(data):,} bytes\n"
    assert data.endswith(b"x\n" + bytes(range(256)) + b"\n")
    assert all(b"line %d\n" % number in data for number in range(0, 200_000, 20_000))
    wrong = pair.run(f"%sky logs 0 --save '{tmp_path}'")
    assert "name another file" in wrong.sentence


def test_a_display_is_updated_in_the_background_too(pair: LiveNotebook) -> None:
    code = "h = display('0 of 9', display_id=True)\nprint('between')\nh.update('9 of 9')"
    pair.succeed(f"r = get_ipython().run_cell_magic('sky', '--background', {code!r})\nr.result()")
    assert pair.value("r.output") == "'9 of 9'\nbetween\n"


def test_a_run_in_the_background_says_which_values_are_not_in_the_notebook(
    pair: LiveNotebook,
) -> None:
    cell = pair.succeed("%%sky --background --out best\nprint('trained')\nbest = 9")
    line = "best is on the ranks: `result()` of this run brings it here"
    pair.watch(cell, lambda cell: cell.shown[-1] == f"trained\n{line}")
    pair.finish(pair.start("_.result()"), cell)
    assert cell.shown[-1] == "trained"
    assert pair.value("best") == 9


def test_a_run_in_the_background_says_that_it_shows_only_its_last_lines(
    pair: LiveNotebook,
) -> None:
    cell = pair.succeed("%%sky --background\nfor number in range(42):\n    print('line', number)")
    said = "[2 earlier lines: print `output` of this run to see more]"
    last = "\n".join(f"line {number}" for number in range(2, 42))
    pair.watch(cell, lambda cell: cell.shown[-1] == f"{said}\n{last}")


def test_what_cannot_be_encoded_is_shown_escaped(pair: LiveNotebook, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    cell = pair.succeed(
        "%%sky\nfrom IPython.display import HTML\nimport jupyter_sky as sky\n"
        f"name = os.fsdecode(os.path.join({folder!r}, b'n\\xff'))\nopen(name, 'w').close()\n"
        "display(HTML('ü\\ud800' + os.path.basename(name)), metadata={'a': '\\ud800'})\n"
        "sky.log(**{'loss\\ud800': 1.0})\nprint('behind')"
    )
    assert [each["text/html"] for each in cell.data] == ["ü\\ud800n\\udcff"]
    assert cell.stdout == "behind\n"


@pytest.mark.parametrize("options", ["", "--stdout all", "--display safe"])
def test_neither_are_texts_and_places_that_cannot(pair: LiveNotebook, options: str) -> None:
    cell = pair.succeed(
        f"%%sky {options}\nfor place in ('i\\ud800', 'i\\udcff'):\n"
        "    display(place[:1], display_id=place).update(f'now {place!r}')\n"
        "type('Kind', (), {'__repr__': lambda self: 'its \\udcff'})()"
    )
    shown = "".join([cell.stdout, *cell.shown])
    ranks = 2 if options == "--stdout all" else 1
    for each in ("ud800", "udcff"):
        assert shown.count(f"now 'i\\\\{each}'") == ranks, shown
    assert shown.count("its \\udcff") == ranks
    assert cell.stderr == ""
