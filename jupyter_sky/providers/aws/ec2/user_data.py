"""User data: what an instance does when it boots, in the language of cloud-init.

It gets a host key that we know, so that already the first connection is to the right machine, and a
dead man's switch: it powers off, which terminates it, when it has had no agent for a while, and
when the time that was paid for is over, whatever has become of the notebook.
"""

from __future__ import annotations

import json
import shlex

from jupyter_sky.providers.ssh.setup.environment import INSTALL_WITHIN

FIRST_AGENT_WITHIN = int(2 * INSTALL_WITHIN) + 600
"""Seconds after booting in which an agent has to come.

It comes after packages of the system and those of Python, each of which may take its time.
"""

NEXT_AGENT_WITHIN = 120
"""Seconds without an agent, once there has been one."""

_UNTIL = "/run/jupyter-sky-until"
"""When a machine powers off whatever goes on, in seconds since it was switched on."""

# It looks for a process with this very word: a script that asks for an agent does not count,
# and neither does `grep` itself, thanks to the brackets.
_SWITCH = r"""
{
    quiet=0 seen=
    while :; do
        if grep -qszxE '[j]upyter_sky\.node' /proc/[0-9]*/cmdline; then
            seen=yes quiet=0
        else
            quiet=$((quiet + every))
        fi
        limit=$first; test -n "$seen" && limit=$next
        up=$(cut -d. -f1 /proc/uptime)
        test "$quiet" -ge "$limit" && break
        test -s "$until" && test "$up" -ge "$(cat "$until")" && break
        sleep "$every"
    done
    poweroff || halt -fp
} </dev/null >/dev/null 2>&1 &
"""


# What a snapshot still has of the machine that it was made of: who may log in, and files of runs.
_FORGET = "rm -rf /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /tmp/jupyter-sky-*"


def user_data(
    host_key: tuple[str, str],
    lifetime: float | None,
    first: int,
    every: int,
    is_snapshot: bool = False,
) -> str:
    """Return the user data of an instance.

    Parameters
    ----------
    host_key
        The private and the public half of the key that it shows when it is logged in to first.
    lifetime
        Seconds after which it powers off whatever goes on; ``None``: never.
    first, every
        Seconds that it waits for its first agent, and between two looks for one.
    is_snapshot
        Whether it boots from a snapshot of another machine.
    """
    private, public = host_key
    variables = {"first": first, "next": NEXT_AGENT_WITHIN, "every": every, "until": _UNTIL}
    given = "\n".join(f"{name}={value}" for name, value in variables.items())
    switch = f"{given}\n{_set_power_off(lifetime) if lifetime else ''}\n{_SWITCH}"
    forget = ["cloud-init-per", "instance", "jupyter-sky-forget", "sh", "-c", _FORGET]
    config = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": private, "ed25519_public": public},
        "ssh_pwauth": False,
        # On every boot, and before anybody can log in.
        "bootcmd": [*[forget] * is_snapshot, ["sh", "-c", switch]],
    }
    # YAML takes JSON as it is.
    return f"#cloud-config\n{json.dumps(config)}\n"


ASK_POWER_OFF = f"""
test -s {_UNTIL} || exit 0
echo $(($(cat {_UNTIL}) - $(cut -d. -f1 /proc/uptime)))
"""
"""Prints the seconds until a machine powers off because the money is spent."""


def power_off_script(seconds: float) -> str:
    """Return a script that lets a machine power off in so many seconds, whatever goes on."""
    root = 'root=; test "$(id -u)" = 0 || root="sudo -n"'
    return f"{root}\n$root sh -c {shlex.quote(_set_power_off(seconds))}"


def _set_power_off(seconds: float) -> str:
    return f"echo $(($(cut -d. -f1 /proc/uptime) + {int(seconds)})) >{_UNTIL}"


def renew_host_key_script(folder: str = "/etc/ssh") -> str:
    """Return a script that gives a machine a host key nobody else has seen, and prints it.

    User data can be read by every process on the machine, and by whoever may describe instances.
    """
    key = shlex.quote(f"{folder}/ssh_host_ed25519_key")
    return f"""
        set -e
        root=; test "$(id -u)" = 0 || root="sudo -n"
        $root ssh-keygen -q -t ed25519 -N '' -C '' -f {key}.new
        $root mv {key}.new {key}
        $root mv {key}.new.pub {key}.pub
        $root systemctl try-restart ssh sshd 2>/dev/null ||
            $root pkill -HUP -f 'sshd: .*[[]listener'
        $root cat {key}.pub
        """
