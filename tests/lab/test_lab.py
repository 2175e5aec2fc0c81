"""The lab itself: what tests on it rely on."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.lab import Lab, missing
from tests.lab.lab import labs
from tests.waiting import PATIENCE

if reason := missing():
    pytest.skip(reason, allow_module_level=True)


def ssh(lab: Lab, host: str, command: str) -> subprocess.CompletedProcess[str]:
    folder = lab.home / ".ssh"
    options = [
        *("-F", folder / "config", "-i", folder / "id_ed25519"),
        *("-o", f"UserKnownHostsFile={folder / 'known_hosts'}", "-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=60", "-o", "IdentitiesOnly=yes"),
    ]
    return subprocess.run(
        ["ssh", *map(str, options), host, command], capture_output=True, text=True
    )


def reaches(host, other, within: float = 60) -> bool:
    script = f"import socket; socket.create_connection(({other.address!r}, 22), {within})"
    return not host.run(sys.executable, "-c", f"try:\n {script}\nexcept OSError: print('no')")


def test_hosts_have_a_network_a_home_and_memory_of_their_own(lab: Lab) -> None:
    said = [ssh(lab, host.name, "hostname; echo $HOME").stdout.split() for host in lab.hosts]
    assert said == [[host.name, str(host.home)] for host in lab.hosts]
    first, second = lab.hosts[:2]
    first.run("touch", "/dev/shm/mine")
    assert second.run("ls", "/dev/shm") == ""
    first.run("rm", "/dev/shm/mine")
    assert (first.address, 22) in first.listening()
    assert reaches(first, second)


def test_a_cable_can_be_cut_and_a_firewall_is_between_two(lab: Lab) -> None:
    first, second, third = lab.hosts[:3]
    first.cut()
    with pytest.raises(OSError):
        socket.create_connection((first.address, 22), timeout=1)
    first.mend()
    assert ssh(lab, first.name, "true").returncode == 0
    first.block(second)
    try:
        assert not reaches(second, first, within=2)
        assert reaches(third, first)
    finally:
        first.speed_up()
    assert reaches(second, first)


def test_without_power_nothing_is_left(lab: Lab) -> None:
    host = lab.hosts[3]
    ssh(lab, host.name, "setsid sleep 600 </dev/null >/dev/null 2>&1 &")
    processes = [psutil.Process(host.pid), *host.processes()]
    assert any("sleep 600" in " ".join(process.cmdline()) for process in processes)
    host.power_off()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive
    host.start()
    assert ssh(lab, host.name, "true").returncode == 0


@pytest.mark.parametrize("power", ["on", "off"])
def test_the_next_lab_removes_one_that_was_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: str
) -> None:
    # In a folder of its own: the next lab of another test would remove it too.
    forwarding = tmp_path / "ip_forward"
    forwarding.write_text("0")
    monkeypatch.setattr("tests.lab.lab._PLACE", tmp_path)
    monkeypatch.setattr("tests.lab.lab._FORWARDING", forwarding)
    script = (
        "import os, pathlib, tests.lab.lab as labs\n"
        f"labs._PLACE = pathlib.Path({str(tmp_path)!r})\n"
        f"labs._FORWARDING = pathlib.Path({str(forwarding)!r})\n"
        "lab = labs.Lab.start(1)\n"
        "lab.open_gate()\n"
        "print(lab.index, flush=True)\n"
        "os._exit(9)"
    )
    index = int(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
    [left] = [lab for lab in labs() if lab.index == index]
    assert left.is_left_over and forwarding.read_text() == "1"
    process = psutil.Process(left.hosts[0].pid)
    if power == "off":  # of this machine: hosts have their files in memory
        left.hosts[0].power_off()
        subprocess.run(["umount", "--lazy", left.hosts[0].folder], check=True)
    following = Lab.start(1)
    try:
        psutil.wait_procs([process], timeout=PATIENCE)
        assert not process.is_running()
        assert following.hosts[0].is_up and forwarding.read_text() == "0"
    finally:
        following.stop()
    assert not following.folder.exists()


def test_a_clock_that_is_set_leaves_no_lab_over(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    began = psutil.Process().create_time()
    # What the system says of the time of day at which it began changes with the clock.
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began + 3600)
    assert not lab.is_left_over
