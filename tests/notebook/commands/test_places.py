"""Clusters that could come from several places: ``--provider ssh,local``, and what is said."""

from __future__ import annotations

import re

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry
from tests.installed import skip_without
from tests.notebook.conftest import Notebook


def test_the_next_provider_is_taken_where_one_has_no_nodes(notebook: Notebook) -> None:
    said = notebook.run("%%sky --provider ssh,local --hosts 127.0.0.1:1 --nodes 1\nprint('here')")
    assert "ssh costs nothing; local costs nothing" in said
    assert "not ssh: " in said and "now local, which costs nothing" in said
    assert said.endswith("here\n")
    # The options fit the cluster that is up, and other ones do not.
    assert notebook.run("%%sky --provider ssh,local --hosts 127.0.0.1:1\nprint('again')")
    with pytest.raises(sky.UsageError, match="is running with --provider local, and the cell asks"):
        notebook.run("%%sky --provider ssh,aws\npass")
    with pytest.raises(sky.UsageError, match="is running with --nodes 1, and the cell asks for 2"):
        notebook.run("%%sky --provider ssh,local --nodes 2\npass")
    assert "running locally" not in said
    notebook.run("%sky scale 2")
    assert notebook.run("%%sky --nodes 2\nprint('two')") == "two\n"
    with pytest.raises(sky.UsageError, match="is running without --hosts, and the cell asks for a"):
        notebook.run("%%sky --hosts a\npass")


def test_where_no_provider_has_nodes_each_says_why(notebook: Notebook) -> None:
    with pytest.raises(sky.SkyError, match="no nodes at any of 2 places: ssh: .*; local: "):
        notebook.run("%%sky --provider ssh,local --hosts 127.0.0.1:1 --memory 100000+\npass")
    assert "No cluster" in notebook.run("%sky status")


def test_options_that_none_of_them_has_a_use_for_are_refused(notebook: Notebook) -> None:
    with pytest.raises(sky.UsageError, match="--spot-or-on-demand does not apply to local nodes"):
        notebook.run("%%sky --nodes 2 --spot-or-on-demand\npass")
    with pytest.raises(sky.UsageError, match="--region does not apply to local or ssh nodes"):
        notebook.run("%%sky --provider local,ssh --region us-east-1\npass")
    # The only ones that could be spot take no hosts.
    with pytest.raises(sky.UsageError, match="--spot does not apply to ssh nodes: leave it out.$"):
        notebook.run("%%sky --hosts gpu1,gpu2 --spot\npass")
    notebook.run("%config Sky.provider = 'slurm'")
    sentence = "--hosts does not apply to slurm nodes: leave it out, or add `--provider ssh`."
    with pytest.raises(sky.UsageError, match=f"^{re.escape(sentence)}$"):
        notebook.run("%%sky --hosts gpu1\npass")
    with pytest.raises(sky.UsageError, match="^--volume does not apply to slurm nodes: leave it"):
        notebook.run("%%sky --nodes 2 --volume s3://bucket/photos:/data\npass")
    with pytest.raises(sky.UsageError, match="--hosts are machines to reach over SSH"):
        notebook.run("%%sky --provider local,aws --hosts gpu1\npass")


def test_no_option_for_a_cluster_that_is_running_is_passed_over(notebook: Notebook) -> None:
    line = "--nodes 2 --plugin none --idle-timeout 30m"
    notebook.run(f"%%sky {line}\nx = 1")
    assert notebook.run(f"%%sky {line} --max-price 5\nprint(x)") == "1\n"
    refused = {
        "--plugin jax": "running without --plugin, and the cell asks for jax",
        "--cpus 8+": "running without --cpus, and the cell asks for 8+",
        "--idle-timeout 1h": "running with --idle-timeout 30m, and the cell asks for 1h",
        "--replace": "running without --replace, and the cell asks for it",
        "--patience 1h": "running without --patience, and the cell asks for 1h",
        "--gpu A100": "running without --gpu, and the cell asks for A100",
    }
    for options, sentence in refused.items():
        with pytest.raises(sky.UsageError) as caught:
            notebook.run(f"%%sky {options}\nx = 2")
        assert sentence in str(caught.value)
        assert "`%sky down` first to replace it" in str(caught.value)
        assert ", or add `--cluster NAME` to start a second one" in str(caught.value)
        assert ("costs their variables" in str(caught.value)) == ("--plugin" in options)
    assert notebook.run("%%sky\nprint(x)") == "1\n"


def test_plugins_are_added_where_that_costs_no_variables(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("transformers", "datasets", "distributed")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    notebook.run(
        "%%sky --nodes 1 --plugin none\nimport os\nos.environ.pop('HF_TOKEN', None)\nx = 1"
    )
    said = notebook.run("%%sky --plugin huggingface\nprint(os.environ['HF_TOKEN'], x)")
    assert said == "hf_of_the_test 1\n"
    assert "added huggingface in" in notebook.stderr
    assert "variables stay" in notebook.stderr
    assert notebook.run("%%sky --plugin huggingface\nprint(x)") == "1\n"
    # It is there for other kernels, and for ranks that begin anew.
    [row] = registry.rows()
    assert row.spec["plugins"] == ["huggingface"]
    assert "--plugin huggingface" in row.spec["line"]
    notebook.run("%sky restart")
    assert notebook.run("%%sky\nimport os\nprint(os.environ['HF_TOKEN'])") == "hf_of_the_test\n"
    # What a plugin gives the notebook is there too.
    notebook.run("%%sky --plugin dask\npass")
    assert "added dask in" in notebook.stderr
    assert notebook.shell.run_line_magic("sky", "dask").scheduler_info()["workers"]


def test_a_plugin_that_forms_a_group_is_added(notebook: Notebook) -> None:
    notebook.run("%%sky --nodes 2 --plugin none\nx = 2")
    said = notebook.run(
        "%%sky --plugin torch\nimport torch.distributed as dist\nprint(x * dist.get_world_size())"
    )
    assert said == "4\n"
    assert "added torch in" in notebook.stderr
    assert "variables stay, and the process group is a new one" in notebook.stderr


def test_plugins_and_packages_that_are_there_may_be_named_again(notebook: Notebook) -> None:
    notebook.run("%%sky --plugin joblib,torch\npass")
    assert notebook.run("%%sky --plugin torch\nprint('here')") == "here\n"
    with pytest.raises(sky.UsageError, match="with --plugin joblib,torch, and .* asks for none"):
        notebook.run("%%sky --plugin none\npass")
