"""Relays files: they are sent once, to one host, and the others get them from there.

Relayed files are public, like uv, or belong to the same user, like wheels. The host offers them to
anybody who knows the digest, and the others verify the digest, which they got over SSH.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import PurePosixPath

from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.setup.facts import HostFacts

_TAKEN_WITHIN = 600.0  # seconds; a gigabyte of wheels on a slow network
_LOOK_EVERY = 0.2

Report = Callable[[str], None]


@dataclass(frozen=True)
class RelayedFile:
    """A file for hosts.

    Attributes
    ----------
    name
        Its name for the user.
    digest
        SHA-256 of its content, in hexadecimal digits.
    path
        Where to put it on a host.
    is_kept
        Whether it stays there after all hosts have got it.
    """

    name: str
    digest: str
    path: str
    is_kept: bool = True


@dataclass(frozen=True)
class _Offer:
    """A host that offers a file: its name, the address, and the script that ends the offer."""

    host: str
    url: str
    connection: HostShell
    end: str


class Relay:
    """Sends files to hosts.

    Parameters
    ----------
    hosts
        The number of hosts.
    """

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._contents: dict[str, Future[tuple[bytes, str]]] = {}
        self._offers: dict[str, Future[_Offer | None]] = {}

    def content(self, name: str, make: Callable[[], bytes]) -> tuple[bytes, str]:
        """Return content for several hosts, and its digest, which is made only once.

        An error is raised for all of them: the next one would wait as long for it.
        """
        with self._lock:
            content = self._contents.get(name)
            if is_first := content is None:
                content = self._contents[name] = Future()
        assert content is not None
        if is_first:
            try:
                made = make()
                content.set_result((made, hashlib.sha256(made).hexdigest()))
            except BaseException as error:
                content.set_exception(error)
        return content.result()

    def bring(
        self,
        connection: HostShell,
        facts: HostFacts,
        file: RelayedFile,
        send: Callable[[], None],
        report: Report,
    ) -> bool:
        """Put a file on a host: from this computer, or from a host that has it already.

        Parameters
        ----------
        connection, facts
            The connection to the host, and its facts.
        file
            The file.
        send
            Sends it from here.
        report
            Called with the present step; raises an error if everything should end.

        Returns
        -------
        bool
            Whether it offers the file to others from now on.

        Raises
        ------
        HostError
            If the host cannot be used.
        """
        with self._lock:
            offer = self._offers.get(file.digest)
            if is_first := offer is None:
                offer = self._offers[file.digest] = Future()
        assert offer is not None
        if is_first:
            made = None
            try:
                send()
                made = _offered(connection, facts, file) if self._hosts > 1 else None
            finally:
                offer.set_result(made)
            return made is not None
        report(f"waiting for {file.name}")
        while True:
            try:
                there = offer.result(_LOOK_EVERY)
                break
            except NotYet:
                report(f"waiting for {file.name}")
        if there is None or not _taken(connection, there, file, report):
            send()
        return False

    def close(self) -> None:
        """End the offers of hosts."""
        for offer in self._offers.values():
            if offer.done() and (there := offer.result()):
                # Offers of unreachable hosts end by themselves.
                with contextlib.suppress(HostError):
                    there.connection.run(there.end)


# It says its port and process on its standard output, which nobody else can write to: where others
# could answer in its place, as with a file in /tmp, they would say which process we end.
# It ends if nobody has asked for a while, since a killed notebook cannot end it.
_SERVER = """
import http.server, os, shutil, sys
path, digest, address = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/" + digest:
            return self.send_error(404)
        with open(path, "rb") as file:
            self.send_response(200)
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer((address, 0), Handler)
server.timeout = 60
server.handle_timeout = lambda: os._exit(0)
pid = os.fork()
if pid:
    print(server.server_port, pid, flush=True)
    os._exit(0)
os.setsid()
nowhere = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nowhere, stream)
while True:
    server.handle_request()
"""

# Any Python will do; there may be only the one that uv knows.
_PYTHON = "$(command -v python3 || {uv} python find --no-project 2>/dev/null)"

_OFFER = """
python={python}
test -x "$python" || exit 0
"$python" -I -c {server} {words} </dev/null 2>/dev/null || true
"""

_TAKE = """
umask 077
mkdir -p {folder} || exit
new=$(mktemp {path}.XXXXXX) || exit
url={url}
take() {{
    if command -v curl >/dev/null; then
        curl -fsS --noproxy '*' --connect-timeout 5 -o "$new" "$url" && return
    fi
    if command -v wget >/dev/null; then
        wget -q --no-proxy -T 20 -t 1 -O "$new" "$url" && return
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        command -v $python >/dev/null || continue
        $python -I -c {client} "$url" "$new" && return
    done
    return 1
}}
if take >/dev/null 2>&1 && echo "{digest}  $new" | sha256sum -c --status; then
    chmod 700 "$new" && mv "$new" {path} && echo taken
else
    rm -f "$new"
fi
"""

_CLIENT = """
import shutil, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
with opener.open(sys.argv[1], timeout=20) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)
"""


def _offered(connection: HostShell, facts: HostFacts, file: RelayedFile) -> _Offer | None:
    """Let a host offer a file to others; return ``None`` if it cannot."""
    uv = facts.uv or facts.sent_uv
    script = _OFFER.format(
        python=_PYTHON.format(uv=shlex.quote(uv)),
        server=shlex.quote(_SERVER),
        words=shlex.join([file.path, file.digest, facts.address]),
    )
    said = connection.run(script).split()
    if len(said) != 2:
        return None
    port, pid = said
    address = f"[{facts.address}]" if ":" in facts.address else facts.address
    url = f"http://{address}:{int(port)}/{file.digest}"
    end = f"kill {int(pid)} 2>/dev/null || true"
    if not file.is_kept:
        end += f"; rm -f {shlex.quote(file.path)}"
    return _Offer(str(connection.target), url, connection, end)


def _taken(connection: HostShell, offer: _Offer, file: RelayedFile, report: Report) -> bool:
    """Get a file from another host; return whether that worked."""
    report(f"taking {file.name} from {offer.host}")
    script = _TAKE.format(
        folder=shlex.quote(str(PurePosixPath(file.path).parent)),
        path=shlex.quote(file.path),
        url=shlex.quote(offer.url),
        digest=file.digest,
        client=shlex.quote(_CLIENT),
    )
    said = connection.run(script, within=_TAKEN_WITHIN, ends_with_us=True)
    return said.strip() == "taken"
