"""Data in buckets on machines over SSH: each has its own cache, and no key of the user."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import psutil
import pytest

from tests.lab import Lab
from tests.lab.buckets import SECRET, Buckets, serving
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until


@pytest.fixture
def bucket(lab: Lab) -> Iterator[Buckets]:
    with serving(lab.address) as made:
        made.put({"data/a.txt": b"first", "data/large.bin": os.urandom(3_000_000)})
        made.asked.clear()
        yield made


def test_each_host_has_the_files_and_none_has_the_key(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1:2,lab2 --cluster data --volume s3://photos/data:~/data")
    cell = over_ssh.succeed(
        "%%sky --stdout all\nimport os, socket\nhome = os.path.expanduser('~/data')\n"
        "print(open(f'{home}/a.txt').read(), os.path.getsize(f'{home}/large.bin'))\n"
        "open(f'{home}/of-{socket.gethostname()}', 'w').write('result')"
    )
    assert cell.stdout.count("first 3000000") == 3
    assert "wrote 2 files, 12 B, to s3://photos/data" in cell.shown[-1]
    assert bucket.reads("data/a.txt") == 2  # once on each host
    assert bucket.reads("data/large.bin") == 0
    assert bucket.get("data/of-lab2") == b"result"
    for host in lab.hosts[:2]:
        for path in host.home.rglob("*"):
            held = path.read_bytes() if path.is_file() and path.name != "large.bin" else b""
            assert SECRET.encode() not in held, path
    keepers = [host.processes("jupyter_sky.node.volumes.keeper") for host in lab.hosts[:2]]
    assert all(keepers)
    for each in itertools.chain(*keepers):
        assert SECRET not in " ".join([*each.cmdline(), *each.environ().values()])
    # What cannot be written stays on the node, and the user hears where.
    bucket.deny_writes()
    cell = over_ssh.succeed("%%sky --ranks 0\nopen(f'{home}/late', 'w').write('kept')")
    place = lab.hosts[0].home / "data" / "late"
    assert f"not written to s3://photos/data: {place}, on lab1 alone (access to" in cell.stderr
    assert str(place) in over_ssh.succeed("%sky down").stderr
    assert place.read_text() == "kept"
    assert [each.name for each in place.parent.iterdir()] == ["late"]
    assert not (lab.hosts[1].home / "data").exists()


def test_a_key_that_does_not_expire_is_not_sent(bucket: Buckets, over_ssh: LiveNotebook) -> None:
    over_ssh.succeed("import os; os.environ['AWS_ENDPOINT_URL_STS'] = 'http://127.0.0.1:9'")
    cell = over_ssh.run("%sky up --hosts lab1 --cluster data --volume s3://photos/data:~/data")
    assert "your AWS key does not expire, so that it is not sent to nodes" in cell.sentence
    assert "No cluster is running" in over_ssh.succeed("%sky status").stdout


def test_what_other_nodes_have_written_is_told_where_one_is_lost(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/lost")
    bucket.deny_writes()
    over_ssh.succeed(
        "%%sky --ranks 0\nimport os\nopen(os.path.expanduser('~/lost/late'), 'w').write('kept')"
    )
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    cell = over_ssh.run("%%sky\nimport time\nwhile True:\n    time.sleep(0.1)")
    assert "cluster data is lost: " in cell.sentence
    bucket.allow_writes()
    cell = over_ssh.succeed("%sky restart")
    assert "wrote 1 file, 4 B, to s3://photos/data" in str(cell.shown)
    assert bucket.get("data/late") == b"kept"
    lost = "what ranks of lab2 have written to volumes may not be there: the agent of lab2 ended"
    assert lost in cell.stderr


def test_what_a_node_says_that_took_the_place_of_another_is_told(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed(
        "%sky up --hosts lab1,lab2 --replace --cluster data --volume s3://photos/data:~/replaced"
    )
    bucket.deny_writes()
    over_ssh.succeed(
        "%%sky --ranks 1\nimport os\nopen(os.path.expanduser('~/replaced/late'), 'w').write('kept')"
    )
    for process in lab.hosts[1].processes("jupyter_sky.node"):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    cells = [over_ssh.run("%%sky\npass"), over_ssh.succeed("%%sky\npass")]  # one may not know yet
    assert (lab.hosts[1].home / "replaced.left-1" / "late").read_text() == "kept"
    assert "replaced.left-1 now: late" in " ".join(f"{each.shown} {each.stderr}" for each in cells)


def test_a_machine_that_leaves_writes_back_before(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/leaving")
    over_ssh.succeed(  # as machines that are rented
        "import jupyter_sky as sky\nfrom jupyter_sky.cluster.volumes import unattached\n"
        "unattached.CloudProvider = sky.SSH"
    )
    bucket.deny_writes()
    over_ssh.succeed(
        "%%sky --stdout all\nimport os, socket\n"
        "open(os.path.expanduser(f'~/leaving/{socket.gethostname()}'), 'w').write('kept')"
    )
    refused = over_ssh.run("%sky scale 1").sentence
    assert "data stays as it was: not written to s3://photos/data: " in refused
    assert "leaving/lab2, on lab2 alone" in refused
    assert "lab1" not in refused.replace(str(lab.hosts[1].home), "")
    assert "`%sky scale --discard 1 --cluster data` lets nodes leave with them" in refused
    assert over_ssh.succeed("%%sky --stdout all\nprint('up')").stdout.count("up") == 2
    bucket.allow_writes()
    over_ssh.succeed("%sky scale 1")
    assert bucket.get("data/lab2") == b"kept"


def test_nothing_that_a_run_writes_goes_back_where_it_keeps_nodes_from_leaving(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    """Its files may be half written."""
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/busy")
    over_ssh.succeed(
        "%%sky --ranks 1 --background\nimport os, time\nhome = os.path.expanduser('~/busy')\n"
        "with open(f'{home}/half', 'w') as file:\n    file.write('1,')\n"
        "while os.path.exists(f'{home}/half'):\n    time.sleep(0.01)"
    )
    over_ssh.succeed("run = _")
    half = lab.hosts[1].home / "busy" / "half"
    until(lambda: half.is_file() and half.read_bytes() == b"1,")
    refused = over_ssh.run("%sky scale 1").sentence
    assert "cluster data is busy: scale it when the run is over, or stop that first" in refused
    assert "data/half" not in bucket.names()
    half.unlink()
    over_ssh.succeed("run.result()")
    over_ssh.succeed("%sky scale 1")


def test_what_is_left_of_a_lost_cluster_is_written_back_before_it_is_ended(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/rest")
    bucket.deny_writes()
    over_ssh.succeed(
        "%%sky --ranks 0\nimport os\nopen(os.path.expanduser('~/rest/late'), 'w').write('kept')"
    )
    over_ssh.restart()
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    over_ssh.succeed(  # as machines that are rented
        "%load_ext jupyter_sky\n"
        "import jupyter_sky as sky\nfrom jupyter_sky.cluster.volumes import unattached\n"
        "unattached.CloudProvider = sky.SSH"
    )
    refused = over_ssh.run("%%sky --cluster data\npass").sentence
    assert "data has lost a node, and stays as it was: not written to s3://photos/data: " in refused
    assert "rest/late, on lab1 alone" in refused
    assert "`%sky down --discard data` ends the cluster without" in refused
    assert over_ssh.run("%sky down data").sentence == refused
    bucket.allow_writes()
    assert "removed data: " in over_ssh.succeed("%sky gc").stdout
    assert bucket.get("data/late") == b"kept"


def test_what_is_left_is_written_back_with_new_credentials_where_the_old_ones_have_expired(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed(  # so few seconds that a node asks for others each time
        "import time\nfrom jupyter_sky.providers.buckets import credentials\n"
        "made, seconds = credentials._made, 200.0\n"
        "credentials._made = lambda answer: {**made(answer), 'expires': time.time() + seconds}"
    )
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/old")
    magic = "get_ipython().magics_manager.magics['cell']['sky'].__self__"
    over_ssh.succeed(f"seconds = 0.0\n{magic}._session.find().mounts.add([])")
    over_ssh.start(
        "%%sky --ranks 0\nimport os\nopen(os.path.expanduser('~/old/late'), 'w').write('kept')"
    )
    late = lab.hosts[0].home / "old" / "late"
    until(lambda: late.is_file() and late.read_bytes() == b"kept")
    over_ssh.restart()
    over_ssh.succeed("%load_ext jupyter_sky")
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    assert "data: ended" in over_ssh.succeed("%sky down data").stdout
    assert bucket.get("data/late") == b"kept"


def test_a_cluster_of_which_a_node_does_not_answer_is_not_ended_with_files_that_are_nowhere_else(
    lab: Lab, bucket: Buckets, over_ssh: LiveNotebook
) -> None:
    over_ssh.succeed("%config Sky.plugin = 'none'")
    over_ssh.succeed("%sky up --hosts lab1,lab2 --cluster data --volume s3://photos/data:~/silent")
    over_ssh.restart()
    over_ssh.succeed(  # as machines that are rented
        "%load_ext jupyter_sky\n"
        "import jupyter_sky as sky\nfrom jupyter_sky.cluster.volumes import unattached\n"
        "unattached.CloudProvider = sky.SSH"
    )
    lab.hosts[1].cut()
    refused = over_ssh.run("%sky down data").sentence
    assert "data stays as it was: what ranks of lab2 have written to volumes may not be" in refused
    assert "`%sky down data` tries again" in refused
    lab.hosts[1].mend()
    cell = over_ssh.succeed("%%sky --cluster data --stdout all\nprint('up')")
    assert cell.stdout.count("up") == 2
