"""A launch that is killed costs minutes, and one that is told to end ends as with Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_sky.cluster import stopped
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import cloud_resources, registry, row_updates
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.cancellable import Cancellable
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import user_data
from jupyter_sky.transport import event_loop
from tests.forks import forks_with
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import denying
from tests.providers.aws.starting import SPEC, provider, start, start_and_fail
from tests.waiting import is_being_stopped, until

Left = Callable[[], list[str]]


@pytest.fixture
def ready(account: Account, subnet: str) -> str:
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    return subnet


class Box:
    """What an instance does with its user data, in a folder of this machine."""

    def __init__(self, folder: Path, lifetime: float | None = None, token: str = "one") -> None:
        self.folder = folder
        self.off = folder / "off"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        power = folder / "bin" / "poweroff"
        power.write_text(f"#!/bin/sh\ntouch {self.off}\n")
        power.chmod(0o755)
        # Every look is one at once.
        pause = folder / "bin" / "sleep"
        pause.write_text("#!/bin/sh\nexec /bin/sleep 0.01\n")
        pause.chmod(0o755)
        text = user_data.user_data(("private", "public"), lifetime, token, 30)
        self.switch = json.loads(text.partition("\n")[2])["bootcmd"][-1][-1]

    def set_clock(self, day: str) -> None:
        """Set the clock of the machine, for who asks for the time of day."""
        clock = self.folder / "bin" / "date"
        clock.write_text(f'#!/bin/sh\nexec /bin/date --date {day} "$@"\n')
        clock.chmod(0o755)

    def _here(self, script: str) -> str:
        for name in ("run", "var/lib/misc"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            script = script.replace(f"/{name}/", f"{self.folder}/{name}/")
        return script.replace("/var/lib/misc", f"{self.folder}/var/lib/misc").replace(
            f"{self.folder}{self.folder}", f"{self.folder}"
        )

    def run(self, script: str) -> str:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", self._here(script)],
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def boot(self) -> None:
        self.off.unlink(missing_ok=True)
        for each in (self.folder / "run").glob("*"):
            each.unlink()
        self.run(self.switch)


@pytest.fixture
def no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of other tests on this machine do not count."""
    monkeypatch.setattr(user_data, "_SWITCH", user_data._SWITCH.replace("[j]upyter", "[j]Upyter"))


@pytest.mark.usefixtures("no_agents")
def test_a_machine_that_hears_nothing_powers_off(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert "first=600\n" in box.switch
    assert "between=300\n" in box.switch
    box.switch = box.switch.replace("first=600", "first=3000")
    box.boot()
    # Each beat is one more look that it stays for: then it waits for the next, and no longer.
    box.run(user_data.beat_script())
    until(box.off.exists)


@pytest.mark.usefixtures("no_agents")
def test_the_limit_outlives_a_reboot_and_no_snapshot(tmp_path: Path) -> None:
    box = Box(tmp_path, lifetime=5000)
    box.boot()
    first = int(box.run(user_data.ASK_POWER_OFF))
    assert 4900 < first <= 5000
    box.run(user_data.power_off_script(2000))
    until(box.off.exists)
    box.boot()
    assert 1900 < int(box.run(user_data.ASK_POWER_OFF)) <= 2000
    until(box.off.exists)
    # The same disk, in another instance.
    other = Box(tmp_path, lifetime=7000, token="two")
    other.boot()
    assert 6900 < int(other.run(user_data.ASK_POWER_OFF)) <= 7000
    until(box.off.exists)


@pytest.mark.usefixtures("no_agents")
def test_the_limit_stands_still_while_a_machine_is_off(tmp_path: Path) -> None:
    box = Box(tmp_path, lifetime=5000)
    box.boot()
    until(box.off.exists)
    left = int((tmp_path / "var/lib/misc/jupyter-sky-left-one").read_text())
    assert 4900 < left <= 5000
    # It was off for so long that its money would be spent by now.
    box.set_clock("2040-01-01")
    box.boot()
    assert left - 100 < int(box.run(user_data.ASK_POWER_OFF)) <= left
    until(box.off.exists)


@pytest.mark.usefixtures("no_agents")
def test_a_machine_is_up_for_long_enough_to_be_told_a_new_limit(tmp_path: Path) -> None:
    """As with ``%sky start --max-cost``, where nearly nothing was left before."""
    box = Box(tmp_path, lifetime=500)
    box.boot()
    assert 400 < int(box.run(user_data.ASK_POWER_OFF)) <= 500
    box.run(user_data.power_off_script(3))
    until(box.off.exists)
    box.boot()
    assert 500 < int(box.run(user_data.ASK_POWER_OFF)) <= 600
    until(box.off.exists)
    # Without a limit there is none after another boot.
    other = Box(tmp_path, token="two")
    for _ in range(2):
        other.boot()
        assert other.run(user_data.ASK_POWER_OFF) == ""
        until(other.off.exists)


@pytest.mark.usefixtures("no_agents")
def test_no_pause_outlasts_the_money(tmp_path: Path) -> None:
    """However seldom a machine looks whether it is still needed."""
    box = Box(tmp_path, lifetime=3000)
    box.switch = box.switch.replace("every=30\n", "every=3600\n")
    pauses = tmp_path / "pauses"
    pauses.touch()
    pause = tmp_path / "bin" / "sleep"
    pause.write_text(f'#!/bin/sh\necho "$1" >>{pauses}\nexec /bin/sleep 0.01\n')
    box.boot()
    until(pauses.read_text)
    first = int(pauses.read_text().split()[0])
    assert 2900 < first <= 3000
    box.run(user_data.power_off_script(0))
    until(box.off.exists)


@pytest.mark.usefixtures("no_agents")
def test_no_clock_and_no_full_disk_changes_the_limit(tmp_path: Path) -> None:
    box = Box(tmp_path, lifetime=5000)
    box.switch = box.switch.replace("first=600", "first=60000")
    box.boot()
    for day in ("2040-01-01", "1999-01-01"):
        box.set_clock(day)
        assert 4900 < int(box.run(user_data.ASK_POWER_OFF)) <= 5000, day
    [kept] = (tmp_path / "var/lib/misc").iterdir()
    kept.unlink()
    kept.symlink_to("/dev/full")
    assert not box.off.exists()
    assert 4900 < int(box.run(user_data.ASK_POWER_OFF)) <= 5000
    box.run(user_data.power_off_script(2000))
    assert 1900 < int(box.run(user_data.ASK_POWER_OFF)) <= 2000
    box.run(user_data.power_off_script(0))
    until(box.off.exists)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_launch_like_ctrl_c(
    account: Account, ready: str, left: Left, clients: Clients, number: signal.Signals
) -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.providers.aws.stand_in.warm"])
    kernel = forks.Process(target=start_and_fail, args=(ready, dict(os.environ)))

    def end(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "RunInstances" and kernel.pid:
            os.kill(kernel.pid, number)
        return answer

    account.fault = end
    kernel.start()
    kernel.join()
    assert kernel.exitcode == -number
    assert "TerminateInstances" in account.actions
    assert left() == []


def test_stop_says_what_may_be_left_of_a_launch(account: Account, ready: str, left: Left) -> None:
    booting = threading.Event()

    def say(text: object) -> None:
        if f"{text}".endswith("to boot"):
            account.fault = denying("TerminateInstances")
            booting.set()

    says = "^the start of train was stopped; something may still be there and cost money .*4 inst"
    told = pytest.raises(Interrupted, match=f"{says}.*`%sky gc` to try again: .*ec2:TerminateInst")
    with told, stopped.start_of("train"), event_loop.interrupted_by(booting):
        Cluster.start(SPEC, provider(ready), RuntimeEnv({}), say)
    account.fault = None
    for rental in cloud_resources.find()[0]:
        rental.remove()
    assert left() == []


def test_stop_while_a_failed_launch_is_ended_waits_for_that(
    account: Account, ready: str, left: Left
) -> None:
    ending = threading.Event()

    def interrupt(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances" and not ending.is_set():
            ending.set()
            until(lambda: is_being_stopped("start"))
        return carry_out()

    account.fault = interrupt
    with event_loop.interrupted_by(ending), pytest.raises(KeyboardInterrupt):
        start(ready)
    assert registry.find(SPEC.name) is None, "nobody else takes it for one that is being started"
    assert left() == []


def start_and_be_killed(subnet: str, variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)

    def be_killed() -> None:
        until(lambda: (row := registry.find(SPEC.name)) and row.rent)
        os.kill(os.getpid(), signal.SIGKILL)

    start(subnet, be_killed)


def test_what_a_killed_launch_has_cost_is_known(ready: str, left: Left) -> None:
    forks = forks_with("tests.providers.aws.stand_in.warm")
    kernel = forks.Process(target=start_and_be_killed, args=(ready, dict(os.environ)))
    kernel.start()
    kernel.join()
    assert kernel.exitcode == -signal.SIGKILL
    row = registry.find(SPEC.name)
    assert row is not None
    assert row.rent is not None
    assert (row.rent.nodes, row.price) == (4, row.rent.price)
    # It began an hour ago, and was killed soon after: the machines have ended by themselves.
    since = row.meter.since - 3600
    row_updates.record_rent(row.id, replace(row.rent, until=since + 900), since)

    def spent() -> list[tuple[float, int, float]]:
        every = [each for each in registry.all_spent() if each.since == since]
        return [(round(3600 * each.hours), each.nodes, each.dollars) for each in every]

    cost = [(900, 4, pytest.approx(row.price / 4))]
    assert spent() == cost
    for rental in cloud_resources.find()[0]:
        rental.remove()
    assert left() == []
    assert registry.find(SPEC.name) is None
    assert spent() == cost, "after its end, too"


def test_a_lack_of_capacity_is_no_outage(account: Account, ready: str, left: Left) -> None:
    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action != "RunInstances":
            return carry_out()
        said = "We currently do not have sufficient capacity"
        return refusal("InsufficientInstanceCapacity", said, "500 Internal Server Error")

    account.fault = refuse
    with pytest.raises(SkyError, match="AWS has no capacity for 4 such instances now"):
        start(ready)
    # There is one type that fits, in the only zone of the subnet.
    assert account.actions.count("RunInstances") == 1
    assert left() == []


def test_ctrl_c_does_not_wait_for_throttling(account: Account, clients: Clients) -> None:
    def throttle(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        return refusal("RequestLimitExceeded", "Request limit exceeded.", "503 Unavailable")

    account.fault = throttle
    account.calls.clear()

    async def stop_at_once() -> None:
        work = Cancellable(lambda text: None)
        job = asyncio.create_task(work.run(clients.ec2.describe_subnets))
        await asyncio.to_thread(until, lambda: len(account.calls) >= 1)
        so_far = len(account.calls)
        await work.stop()
        with pytest.raises(SkyError, match="it was stopped"):
            await job
        # One may be on its way; it would be tried ten times.
        assert len(account.calls) <= so_far + 2

    asyncio.run(stop_at_once())
