"""A package index of the lab: what is installed in the environment of the tests, as wheels."""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import re
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packaging.requirements import Requirement


def build(names: list[str], folder: Path) -> list[Path]:
    """Pack installed distributions, and what they need, as wheels again."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting, seen = list(names), set()
    made = []
    while waiting:
        name = _normal(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            distribution = importlib.metadata.distribution(name)
            made.append(_pack(distribution, folder))
            waiting += [
                requirement.name
                for requirement in map(Requirement, distribution.requires or ())
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ]
    return made


def write(folder: Path, name: str, version: str, **files: str) -> Path:
    """Write a wheel with modules of the test's own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    members = {f"{module}.py": text for module, text in files.items()}
    members[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    members[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in members.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{about}/RECORD", "".join(f"{place},,\n" for place in members))
    return path


def _pack(distribution: importlib.metadata.Distribution, folder: Path) -> Path:
    tags = re.findall(r"^Tag: (.*)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    pythons, abis, platforms = (
        ".".join(dict.fromkeys(tag.split("-")[part] for tag in tags)) for part in range(3)
    )
    name = distribution.metadata["Name"].replace("-", "_")
    path = folder / f"{name}-{distribution.version}-{pythons}-{abis}-{platforms}.whl"
    record = None
    with zipfile.ZipFile(path, "w") as wheel:
        for file in distribution.files or ():
            # What an installer has put elsewhere, or made itself, is in no wheel.
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            # What it brings along of others has one too.
            if len(file.parts) == 2 and file.match("*.dist-info/RECORD"):
                record = file
            elif Path(str(file.locate())).is_file():
                wheel.write(str(file.locate()), str(file))
        names = [*wheel.namelist(), str(record)]
        wheel.writestr(str(record), "".join(f"{each},,\n" for each in names))
    return path


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder of wheels as PEP 503 says; asks for a password if it was given one."""

    def __init__(self, *args, folder: Path, password: str | None, **kwargs) -> None:
        self._folder = folder
        self._password = password
        super().__init__(*args, directory=str(folder), **kwargs)

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if self._password and base64.b64decode(given).decode() != f"lab:{self._password}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            return
        match = re.fullmatch(r"/simple/([^/]+)/", self.path)
        if match is None:
            self.path = self.path.removeprefix("/simple")
            super().do_GET()
            return
        names = [path.name for path in self._folder.glob("*.whl")]
        mine = [name for name in names if _normal(name.partition("-")[0]) == match[1]]
        body = "".join(f'<a href="/simple/{name}">{name}</a>\n' for name in mine).encode()
        self.send_response(200 if mine else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serve(folder: Path, address: str, password: str | None = None) -> Iterator[str]:
    """Serve a folder of wheels and give the address of the index."""
    handler = partial(_Handler, folder=folder, password=password)
    server = ThreadingHTTPServer((address, 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        login = f"lab:{password}@" if password else ""
        yield f"http://{login}{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
