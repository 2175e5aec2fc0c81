"""What is found out about a host, and what is said of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.providers.spec import Accelerator, ClusterSpec
from jupyter_sky.providers.ssh.connection import connection
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.doctor import diagnose
from jupyter_sky.providers.ssh.setup import facts as setup_facts
from jupyter_sky.providers.ssh.setup.facts import HostFacts, gather_facts
from jupyter_sky.providers.ssh.setup.placement import check_size
from tests.lab import Host, Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.conftest import cut

BUS = "/sys/bus/pci/devices"

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
"""What nvidia-smi prints on its standard output where the driver was upgraded without a reboot."""


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@contextlib.contextmanager
def nvidia_smi(host: Host, said: str, status: int = 0, vendor: str = "") -> Iterator[None]:
    """Have a program on a host that prints this, and devices of a vendor on its bus."""
    program, devices = host.folder / "bin" / "nvidia-smi", host.folder / "devices"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(0o755)
    devices.mkdir(exist_ok=True)
    if vendor:
        (devices / "0").mkdir(exist_ok=True)
        (devices / "0" / "vendor").write_text(f"{vendor}\n")
    host.run("mount", "--bind", str(devices), BUS)
    try:
        yield
    finally:
        host.run("umount", BUS)
        program.unlink()
        (devices / "0" / "vendor").unlink(missing_ok=True)


def facts(host: Host) -> HostFacts:
    connection = SSHConnection(parse_one(host.name))
    try:
        return gather_facts(connection)
    finally:
        connection.close()


class Liar(SSHConnection):
    """A host in other hands, which says what the test wants."""

    said = ""

    def run(self, *args: Any, **options: Any) -> str:
        return self.said


SAID = (
    "system\tLinux\nmachine\tx86_64\nuser\t0\numask\t0022\nhome\t/root\nruntime\t/tmp/sky\n"
    "cache\t/root/.cache\ncpus\t4\nmemory\t1\nshared\t1\nrefused\t\ndisk\t1\nloose\t\nuv\t\n"
    "address\t10.0.0.1\n"
)


@pytest.mark.parametrize(
    "wrong",
    ["user\tnobody", "umask\t9", "cpus\tmany", "taken\tx", "home\t/root\x1b]52;c;ZXZpbA==\x07"],
)
def test_what_is_no_fact_is_refused(wrong: str) -> None:
    connection = Liar(parse_one("liar"))
    connection.said = SAID
    assert gather_facts(connection).cpus == 4
    connection.said = f"{SAID}{wrong}\n"
    with pytest.raises(HostError, match="does not say what it is asked"):
        gather_facts(connection)
    connection.said = "system\tLinux\n"
    with pytest.raises(HostError, match="does not say what it is asked"):
        gather_facts(connection)


def test_what_a_command_has_printed_commands_no_terminal() -> None:
    said = "\x1b]0;evil\x07no \x1b[31mroom\x1b[0m"
    for error in (CommandError.of_end(1, [said]), HostError(said)):
        assert str(error) == "no \x1b[31mroom\x1b[0m"


def test_gpus_are_those_that_the_driver_shows(host: Host, client: Path) -> None:
    two = "0, NVIDIA A100-SXM4-80GB, 550.54.15, 4\n1, NVIDIA H100 80GB HBM3, 550.54.15, 4"
    with nvidia_smi(host, two):
        found = facts(host)
    assert found.gpus == ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
    assert (found.driver, found.gpu_trouble) == ("550.54.15", "")


def test_a_host_has_the_gpus_of_a_cluster_that_another_kernel_has_started(
    host: Host, client: Path
) -> None:
    two = "0, NVIDIA A100-SXM4-80GB, 550.54.15, 4\n1, NVIDIA A100-SXM4-80GB, 550.54.15, 4"
    with nvidia_smi(host, two):
        found = facts(host)
    registry.record(
        "a", "x", "ssh", registry.describe(ClusterSpec("x", accelerator=Accelerator("A100", 2)), [])
    )
    row = registry.find("x")
    assert row is not None
    check_size(found, registry.recorded_spec(row))
    registry.remove("a")
    with pytest.raises(HostError, match="3 × A100 was asked for, and it has 2 × NVIDIA A100-SXM4"):
        check_size(found, ClusterSpec("x", accelerator="A100:3"))


def test_a_driver_that_does_not_work_is_said_where_gpus_are_asked_for(
    host: Host, notebook: LiveNotebook
) -> None:
    with nvidia_smi(host, MISMATCH, 18, vendor="0x10de"):
        cell = notebook.run("%%sky --hosts lab1 --gpu A100 --plugin none\npass")
        assert cell.sentence.endswith(
            "lab1: 1 × A100 was asked for, and it has no GPU that can be used "
            f"(nvidia-smi says: {MISMATCH})."
        )
        checks = {each.name: each for each in diagnose(parse_one("lab1"), None)}
        assert checks["GPUs"].found == f"nvidia-smi says: {MISMATCH}"
        assert "a reboot is often enough" in checks["GPUs"].fix
        # Without a wish for GPUs the cell runs, and does not do so on the CPU unsaid.
        cell = notebook.succeed("%%sky --hosts lab1 --plugin none\nprint('ran')")
        assert cell.stdout == "ran\n"
        assert any(f"goes on without GPUs (nvidia-smi says: {MISMATCH})" in t for t in cell.shown)


def test_the_doctor_says_one_thing_of_a_login_over_which_nothing_comes_any_more(
    host: Host, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_WITHIN", 1.0)
    # As for one that an agent uses, of which something was heard a moment ago.
    monkeypatch.setattr(SSHConnection, "doubt_if_unused", lambda self: None)
    pool.get(parse_one("lab1")).connect()
    with cut(host):
        (check,) = diagnose(parse_one("lab1"), None)
    assert (check.name, check.found) == ("SSH", "cannot be used")
    assert "is the machine on" in check.fix


def test_a_machine_without_gpus_may_have_their_programs(host: Host, client: Path) -> None:
    with nvidia_smi(host, "NVIDIA-SMI has failed because", 9, vendor="0x1d0f"):
        found = facts(host)
    assert (found.gpus, found.driver, found.gpu_trouble) == ((), None, "")


def test_what_is_no_line_of_a_gpu_is_passed_over(host: Host, client: Path) -> None:
    with nvidia_smi(host, "WARNING: infoROM is corrupted\n0, NVIDIA L4, 535.1, [N/A]"):
        found = facts(host)
    assert (found.gpus, found.gpu_trouble) == (("NVIDIA L4",), "")


def test_a_gpu_that_hangs_does_not_hold_up_the_rest(
    host: Host, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_facts, "NVIDIA_WITHIN", 1)
    with nvidia_smi(host, "", vendor="0x10de"):
        (host.folder / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
        found = facts(host)
    assert found.gpu_trouble == "nothing for 1 s"
    assert not host.processes("sleep 1000")


# GPUs that others use


USED = """0, NVIDIA A100-SXM4-80GB, 550.54.15, 61234
1, NVIDIA A100-SXM4-80GB, 550.54.15, 4
2, NVIDIA A100-SXM4-80GB, 550.54.15, 18
3, NVIDIA A100-SXM4-80GB, 550.54.15, [N/A]"""

WHICH = "--gather which\nimport os\nwhich = os.environ['CUDA_VISIBLE_DEVICES']"


def test_gpus_that_nobody_uses_come_first(host: Host, notebook: LiveNotebook) -> None:
    """Also where a cluster of this user has them and has not begun to compute."""
    with nvidia_smi(host, USED):
        options = "--hosts lab1 --plugin none"
        cell = notebook.succeed(f"%%sky {options} --gpu A100:2 {WHICH}")
        assert notebook.value("which") == ["1", "2"]
        assert not any("in use already" in each for each in cell.shown)
        cell = notebook.succeed(f"%%sky {options} --cluster two --gpu A100:2 {WHICH}")
        try:
            assert notebook.value("which") == ["0", "3"]
            told = "lab1: GPU 0 is in use already, by others or by a cluster of yours"
            assert any(told in each for each in cell.shown)
        finally:
            notebook.succeed("%sky down two")
