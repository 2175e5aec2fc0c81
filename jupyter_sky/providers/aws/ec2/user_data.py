"""User data: what an instance does when it boots, in the language of cloud-init.

It gets a known host key, so that even the first connection is to the right machine, and a dead
man's switch: it powers off, which terminates it, if it has had no agent for a while, or one that
does nothing any more, or when its money is spent, whatever happens to the notebook.
"""

from __future__ import annotations

import json
import shlex
from pathlib import PurePosixPath

from jupyter_sky.transport.protocol.agent_spec import LIMIT_FILE

FIRST_SIGN_WITHIN = 600
"""Seconds after booting for a notebook to log in: by then it has begun to make a node of it."""

NEXT_BEAT_WITHIN = 300
"""Seconds for the next heart beat of a notebook that makes a node of it, however long that takes.

A launch that was killed costs no more than the longer of the two, and the time to boot.
"""

NEXT_AGENT_WITHIN = 120
"""Seconds without an agent, once there has been one."""

AGENT_HANGS_WITHIN = 600
"""Seconds without a sign of life of an agent that is there: it hangs, or has been stopped.

It may only wait for a disk, so this is longer. It could no longer end the machine itself.
"""

_BEAT = "/run/jupyter-sky-beat"
"""What a notebook writes anew while it makes a node of a machine."""

_LEFT = "/run/jupyter-sky-left"
"""How many seconds are left until then: it leads to the file on the disk that outlives a reboot."""

_KEPT = "/var/lib/misc/jupyter-sky-left-{}"
"""That file: it is of this instance alone, as a snapshot of its disk has it too."""

_UP = "$(cut -d. -f1 /proc/uptime)"


def _keep(seconds: str) -> str:
    """Return a command that writes down how many seconds are left.

    It writes over what is there, as far as it can: on a full disk, nothing new has room.
    """
    return f"printf '%10d\\n' {seconds} 1<>{_LEFT} 2>/dev/null"


# It looks for a process with exactly this word: a script that looks for an agent does not match,
# and neither does `grep` itself, thanks to the brackets. An agent that works waits several times a
# second, which the system counts.
_SWITCH = r"""
{
    quiet=0 pause=0 seen= last= heard=
    while :; do
        now=$(cat "$beat" 2>/dev/null)
        agents=$(grep -lszxE '[j]upyter_sky\.node' /proc/[0-9]*/cmdline)
        signs=$(for each in $agents; do grep ^voluntary "${each%cmdline}status"; done 2>/dev/null)
        if test -n "$signs" && test "$signs" != "$heard"; then
            seen=agent quiet=0
        elif test "$now" != "$last"; then
            seen=${seen:-beat} quiet=0
        else
            quiet=$((quiet + pause))
        fi
        test -s "$off" && rest=$(($(cat "$off") - UP)) && KEEP
        last=$now heard=$signs limit=$first
        test "$seen" = beat && limit=$between
        test "$seen" = agent && limit=$next
        test -n "$agents" && limit=$hangs
        test "$quiet" -ge "$limit" && break
        test -s "$off" && test "$rest" -le 0 && break
        pause=$every
        test -s "$off" && test "$rest" -lt "$every" && pause=$rest
        sleep "$pause"
    done
    poweroff || halt -fp
} </dev/null >/dev/null 2>&1 &
""".replace("UP", _UP).replace("KEEP", _keep("$rest"))


# Remains in a snapshot of the machine that it was made from: authorized keys, and files of runs.
_FORGET = "rm -rf /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /tmp/jupyter-sky-*"


def user_data(
    host_key: tuple[str, str],
    lifetime: float | None,
    token: str,
    every: int,
    is_snapshot: bool = False,
) -> str:
    """Return the user data of an instance.

    Parameters
    ----------
    host_key
        The private and the public half of its host key for the first login.
    lifetime
        Seconds after its first boot when it powers off in any case; ``None`` for never.
    token
        Unique to this launch.
    every
        Seconds between two checks for an agent.
    is_snapshot
        Whether it boots from a snapshot of another machine.
    """
    private, public = host_key
    kept = _KEPT.format(token)
    variables = {
        "first": FIRST_SIGN_WITHIN,
        "between": NEXT_BEAT_WITHIN,
        "next": NEXT_AGENT_WITHIN,
        "hangs": AGENT_HANGS_WITHIN,
        "every": every,
        "beat": _BEAT,
        "off": LIMIT_FILE,
    }
    given = "\n".join(f"{name}={value}" for name, value in variables.items())
    lines = [given, f"mkdir -p {PurePosixPath(kept).parent}", f"ln -sfn {kept} {_LEFT}"]
    # Whoever starts a machine again can only tell it of a new limit after logging in.
    lines.append(f"test -s {_LEFT} && test $(cat {_LEFT}) -lt $first && {_keep('$first')}")
    if lifetime:
        lines.append(f"test -s {_LEFT} || {_keep(str(int(lifetime)))}")
    # While a machine is off it costs nothing: the rest counts from its next boot.
    lines.append(f"test -s {_LEFT} && echo $(({_UP} + $(cat {_LEFT}))) >{LIMIT_FILE}")
    boot = ["sh", "-c", "\n".join([*lines, _SWITCH])]
    forget = ["cloud-init-per", "instance", "jupyter-sky-forget", "sh", "-c", _FORGET]
    config = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": private, "ed25519_public": public},
        "ssh_pwauth": False,
        # On every boot, and before anybody can log in.
        "bootcmd": [forget, boot] if is_snapshot else [boot],
    }
    # YAML takes JSON as it is.
    return f"#cloud-config\n{json.dumps(config)}\n"


ASK_POWER_OFF = f"""
test -s {LIMIT_FILE} || exit 0
echo $(($(cat {LIMIT_FILE}) - {_UP}))
"""
"""Prints the seconds until a machine powers off because the money is spent."""


def power_off_script(seconds: float) -> str:
    """Return a script that lets a machine power off in that many seconds, in any case."""
    root = 'root=; test "$(id -u)" = 0 || root="sudo -n"'
    left = int(seconds)
    new = f"{LIMIT_FILE}.new"
    set_it = f"{_keep(f'{left}')}; echo $(({_UP} + {left})) >{new} && mv {new} {LIMIT_FILE}"
    return f"{root}\n$root sh -c {shlex.quote(set_it)}"


def beat_script() -> str:
    """Return a script that keeps a machine running while it is being prepared."""
    root = 'root=; test "$(id -u)" = 0 || root="sudo -n"'
    return f"{root}\n$root sh -c {shlex.quote(f'date +%s%N >{_BEAT}')}"


def renew_host_key_script() -> str:
    """Return a script that gives a machine a new host key, and prints its public half.

    User data can be read by every process on the machine, and by whoever may describe instances.
    """
    key = "/etc/ssh/ssh_host_ed25519_key"
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
