"""How to reach hosts, from ``~/.ssh/config`` and ``/etc/ssh/ssh_config``."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.imports import import_whole
from jupyter_sky.providers.ssh.connection.configuration.lines import (
    JUMPS,
    WAY,
    read_lines,
)
from jupyter_sky.providers.ssh.connection.configuration.match_lines import decided
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.targets import Target, parse_one

CONNECT_WITHIN = 10.0
"""Seconds for each step of connecting, unless the configuration says otherwise."""

_SYSTEM = Path("/etc/ssh/ssh_config")

_ASKING = {
    "keyboard-interactive": "kbdinteractiveauthentication",
    "password": "passwordauthentication",
}
_ACCEPTING = ("accept-new", "no", "off")

_UNSAFE = re.compile(r"[\s'`\"$\\;&<>|(){}]|^-")
_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk")


@dataclass(frozen=True)
class Login:
    """Where and how to log in.

    Attributes
    ----------
    address, port, user
        Where to connect, and as which user.
    key_name
        The name of the host in ``known_hosts``.
    identity_files
        Private keys to try, in order.
    certificates
        Certificates for them, besides those next to the keys.
    only_these
        Whether to ignore other keys of ssh-agent.
    use_agent
        Whether to use ssh-agent at all.
    asks
        How the user may be asked for what a host wants besides or in place of a key, as methods of
        SSH.
    accepts_new
        Whether a host that ``known_hosts`` does not know is noted there, without a question.
    hashes_names
        Whether its name is not readable there.
    family, source
        The kind of address to connect to, ``inet`` or ``inet6`` if not any, and the own address to
        connect from, if it is chosen.
    agent_socket
        Its socket, in place of the one of the environment.
    jumps
        Jump hosts, the nearest first.
    proxy_command
        A command whose input and output are connected to the host.
    known_hosts
        Files with the keys of hosts.
    connect_within
        Seconds for each step of connecting: reaching the port, negotiation, login.
    proxy_name, proxy_advice
        The user's name for the command, and advice if it fails.
    """

    address: str
    port: int
    user: str
    key_name: str
    identity_files: tuple[Path, ...]
    certificates: tuple[Path, ...]
    only_these: bool
    use_agent: bool
    jumps: tuple[str, ...]
    proxy_command: str | None
    known_hosts: tuple[Path, ...]
    connect_within: float = CONNECT_WITHIN
    proxy_name: str = "ProxyCommand"
    proxy_advice: str = "does ssh reach it in a terminal?"
    asks: tuple[str, ...] = ()
    accepts_new: bool = False
    hashes_names: bool = False
    agent_socket: str | None = None
    family: str = "any"
    source: str | None = None

    @property
    def where(self) -> str:
        """Address and port, for messages."""
        return f"{self.address} port {self.port}"

    @property
    def host(self) -> str:
        """The name that a certificate of the host is for."""
        return re.sub(r"^\[(.*)\]:\d+$", r"\1", self.key_name)


def read_login(target: Target) -> Login:
    """Return how to reach a host, according to the configuration.

    Raises
    ------
    UsageError
        If the configuration cannot be read.
    """
    try:
        return _login(target, _lookup(target))
    except UsageError:
        raise
    except (ValueError, RuntimeError) as error:  # a quotation mark, the home folder of nobody
        raise UsageError(f"~/.ssh/config cannot be used: {str(error).rstrip('.')}.") from None


def check_way(target: Target, login: Login) -> None:
    """Refuse circular jump hosts: each would wait for the next for ever.

    Raises
    ------
    HostError
        With the circle.
    """
    way, places = [str(target)], [(login.address, login.port)]
    while login.jumps and not login.proxy_command:
        *before, last = login.jumps
        login = read_login(parse_one(last))
        if before:
            login = replace(login, jumps=tuple(before), proxy_command=None)
        way.append(last)
        if (login.address, login.port) in places:
            raise HostError(
                f"its jump hosts lead to each other ({' through '.join(way)}): give the first of "
                "them `ProxyJump none` in ~/.ssh/config"
            )
        places.append((login.address, login.port))


def _login(target: Target, options: dict[str, Any]) -> Login:
    address = options["hostname"]
    port = target.port or _port(options)
    filed = options.get("hostkeyalias", address)
    user = target.user or options.get("user") or getpass.getuser()
    jumps, command = _way(target, options, {"h": address, "p": str(port), "r": user})
    chosen = [_path(path) for path in options.get("identityfile", ())]
    usual = [_home() / name for name in _USUAL_KEYS]
    return Login(
        address=address,
        port=port,
        user=user,
        key_name=filed if port == 22 or "hostkeyalias" in options else f"[{filed}]:{port}",
        # Of a key that ssh-agent has, the public part alone may be here.
        identity_files=tuple(
            path for path in chosen or usual if _is_file(path) or _is_file(Path(f"{path}.pub"))
        ),
        certificates=tuple(_path(path) for path in shlex.split(options.get("certificatefile", ""))),
        only_these=options.get("identitiesonly", "no").lower() == "yes",
        use_agent=options.get("identityagent", "").lower() != "none",
        jumps=_before(jumps, address, port),
        proxy_command=command,
        known_hosts=tuple(
            _path(path)
            for name, usual_files in (
                ("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
                ("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"),
            )
            for path in shlex.split(options.get(name, usual_files))
            if path.lower() != "none"
        ),
        asks=tuple(_asks(options)),
        accepts_new=options.get("stricthostkeychecking", "").lower() in _ACCEPTING,
        hashes_names=options.get("hashknownhosts", "").lower() == "yes",
        agent_socket=_agent_socket(options.get("identityagent", "SSH_AUTH_SOCK")),
        family=options.get("addressfamily", "any").lower(),
        source=options.get("bindaddress"),
        connect_within=_seconds(options.get("connecttimeout")) or CONNECT_WITHIN,
    )


def _way(
    target: Target, options: dict[str, Any], tokens: dict[str, str]
) -> tuple[tuple[str, ...], str | None]:
    """Return the jump hosts of a host, or its command; ``none`` stands for neither."""
    way = options.get(WAY, "")
    text = options.get(way, "none")
    if text.lower() == "none":
        return (), None
    text = _with_tokens(text, {**tokens, "n": target.name, "%": "%"})
    if way == JUMPS:
        return tuple(each.removeprefix("ssh://").rstrip("/") for each in text.split(",")), None
    if options.get("proxyusefdpass", "no").lower() == "yes":
        raise ValueError("ProxyUseFdpass is not supported, leave it out")
    if _UNSAFE.search(target.user or ""):
        # It may come from elsewhere, and is passed to a shell.
        raise ValueError(f"{target.user} is no name of a user that a ProxyCommand may be given")
    return (), text


def _asks(options: dict[str, Any]) -> Iterator[str]:
    """Yield the methods of which the user is asked something."""
    if options.get("batchmode", "").lower() == "yes":
        return
    wanted = options.get("preferredauthentications")
    for method, name in _ASKING.items():
        if options.get(name, "yes").lower() != "no" and method in (wanted or method).split(","):
            yield method


def _agent_socket(text: str) -> str | None:
    """Return the socket that ``IdentityAgent`` names, if it is not that of the environment."""
    if text in ("SSH_AUTH_SOCK", "none"):
        return None
    if re.fullmatch(r"\$\w+", text):
        return os.environ.get(text[1:])
    return str(_path(text))


def _with_tokens(text: str, values: dict[str, str]) -> str:
    """Expand the percent tokens in a text of ``ssh_config``."""

    def value(token: re.Match[str]) -> str:
        if token[1] not in values:
            known = ", ".join(f"%{each}" for each in values)
            raise ValueError(f"{token[0]} is not known there; there are {known}")
        return values[token[1]]

    return re.sub("%(.?)", value, text)


def _before(jumps: tuple[str, ...], address: str, port: int) -> tuple[str, ...]:
    """Return the jump hosts before a host; it never needs itself.

    ``ProxyJump`` in ``Host *`` also applies to the jump hosts.
    """
    for index, jump in enumerate(jumps):
        target = parse_one(jump)
        options = _lookup(target)
        if (options["hostname"], target.port or _port(options)) == (address, port):
            return jumps[:index]
    return jumps


def _port(options: dict[str, Any]) -> int:
    text = options.get("port", "22")
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 0 < int(text) < 65536:
        raise UsageError(f"~/.ssh/config cannot be used: {text[:20]!r} is no port.")
    return int(text)


def _seconds(text: str | None) -> float:
    """Return a time of ``ssh_config``, like ``90`` or ``1m30s``; 0 for ``none``."""
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    parts = re.findall(r"(\d{1,9})([smhdw]?)", (text or "").lower())
    return float(sum(int(count) * units[unit] for count, unit in parts))


def _path(text: str) -> Path:
    """Return the path of a file, with ``~`` and ``${NAME}`` as ssh reads them."""

    def value(name: re.Match[str]) -> str:
        if name[1] not in os.environ:
            raise ValueError(f"{name[0]} in it is no variable here")
        return os.environ[name[1]]

    return Path(re.sub(r"\$\{(\w+)\}", value, text)).expanduser()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _home() -> Path:
    return Path.home() / ".ssh"


def _lookup(target: Target) -> dict[str, Any]:
    import_whole("paramiko")
    import paramiko

    lines: list[str] = []
    for path in (_home() / "config", _SYSTEM):
        lines += ["Host *", *read_lines(path, path.parent)]
    if target.user:
        # `Match user` and %r refer to the typed user.
        lines = ["Host *", f"User {target.user}", *lines]

    def looked_up(tag: str) -> dict[str, Any]:
        text = "\n".join(decided(line, tag) for line in lines)
        return dict(paramiko.SSHConfig.from_text(text).lookup(target.name))

    try:
        try:
            options = looked_up("")
        except KeyError:
            # Names are to be completed, and nothing says with what: ssh leaves them as they are.
            lines = ["Host *", "CanonicalizeHostname no", *lines]
            options = looked_up("")
        return looked_up(options["tag"]) if "tag" in options else options
    except paramiko.SSHException as error:
        raise UsageError(f"~/.ssh/config cannot be used: {error}.") from None
