"""A bucket or a shared folder, through fsspec."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from jupyter_sky.node.volumes.shared_folder import SharedFolder
from jupyter_sky.transport.volumes import words
from jupyter_sky.transport.volumes.requests import SessionToken, VolumeOrder

_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Schemes that go through obstore, which needs no other package."""

_FOLDERS = ("file", "local")
_T = TypeVar("_T")

_BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before the next attempts
_MOST_ASKED = 50  # empty files of which it is asked whether they stand for folders
_RENEWED_WITHIN = 120.0  # seconds to wait for new credentials


class BucketError(Exception):
    """An operation on a bucket failed; the message says what, briefly.

    Attributes
    ----------
    is_final
        Whether another attempt would fail too.
    is_gone
        Whether the file is not in the bucket.
    """

    def __init__(self, text: str, is_final: bool = True, is_gone: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.is_gone = is_gone


@dataclass(frozen=True)
class Listed:
    """A file of a bucket: its size in bytes, and a version that changes with its content."""

    size: int
    tag: str


class Bucket:
    """The files below an address.

    Parameters
    ----------
    order
        Its address, and the options of its driver.
    """

    def __init__(self, order: VolumeOrder) -> None:
        self.url = order["url"].rstrip("/")
        self.token = order["token"]
        self._scheme, _, place = self.url.partition("://")
        self._server = str(order["options"].get("endpoint") or "")
        with self._in_words("opened"):
            self._files = _filesystem(self._scheme, order["options"], lambda: self.token)
            if self._scheme in _FOLDERS:
                self._root = os.path.abspath(place)  # noqa: PTH100 - links in it stay
            elif self._scheme in _OBJECT_STORES:
                self._root = place
            else:
                self._root = str(self._files._strip_protocol(self.url))

    def list(self) -> dict[str, Listed]:
        """Return all files, by name relative to the address."""
        return patiently(self._list, _BUSY_PAUSES, _is_busy)

    def _list(self) -> dict[str, Listed]:
        is_plain = self._scheme in _OBJECT_STORES
        with self._in_words("listed"):
            self._files.invalidate_cache()
            if self._scheme in _FOLDERS and not Path(self._root).is_dir():
                raise BucketError(f"there is no folder {self._root} on the node")
            try:
                found = self._files.find(self._root, detail=True)
            except FileNotFoundError:
                if not is_plain:
                    raise
                return {}  # a bucket has no folders: nothing was written below it so far
        start = len(self._root) + 1
        files = {
            path[start:]: Listed(int(info["size"] or 0), _tag(info))
            for path, info in found.items()
            if info["type"] == "file" and len(path) > start and not path.endswith("/")
        }
        return self._without_folders(files) if is_plain else files

    def _without_folders(self, files: dict[str, Listed]) -> dict[str, Listed]:
        """Leave out what stands for folders: empty files `name/`, which obstore calls `name`.

        Consoles make these; as a file, each would be in the way of what is in its folder.
        """
        folders: set[str] = set()
        for name in files:
            while (name := name.rpartition("/")[0]) and name not in folders:
                folders.add(name)
        alone = [name for name in files if not files[name].size and name not in folders]
        # Of many it is not asked: most buckets with many empty files have no such folders.
        folders.update(filter(self._is_folder, alone if len(alone) <= _MOST_ASKED else ()))
        return {name: each for name, each in files.items() if each.size or name not in folders}

    def _is_folder(self, name: str) -> bool:
        try:
            return bool(self._files.info(f"{self._root}/{name}")["type"] == "directory")
        except Exception:  # such as of who may list files, and not read them
            return False

    def info(self, name: str) -> Listed:
        """Return the present state of a file."""
        with self._in_words("read"):
            self._files.invalidate_cache()
            info = self._files.info(f"{self._root}/{name}")
        return Listed(int(info["size"] or 0), _tag(info))

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return a file, or a part of it."""
        with self._in_words("read"):
            data: bytes = self._files.cat_file(f"{self._root}/{name}", start=start, end=end)
        return data

    def write(self, name: str, path: Path) -> None:
        """Upload a file of this node; readers see the previous version meanwhile."""

        def write() -> None:
            with self._in_words("written"):
                self._files.put_file(str(path), f"{self._root}/{name}")

        patiently(write, _BUSY_PAUSES, _is_busy)

    def remove(self, name: str) -> None:
        """Remove a file, if it is still there."""
        with self._in_words("removed"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def _in_words(self, done: str) -> _InWords:
        return _InWords(self.url, self._server, done)


class _InWords:
    """Turns the errors of drivers, which differ for each driver, into sentences."""

    def __init__(self, url: str, server: str, done: str) -> None:
        self._url, self._server, self._done = url, server, done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, BucketError) or not isinstance(error, Exception):
            return
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return
        known, text = self._said(error)
        is_gone = isinstance(error, FileNotFoundError)
        raise BucketError(text, is_final=known, is_gone=is_gone) from error

    def _said(self, error: Exception) -> tuple[bool, str]:
        """Return whether another attempt would fail as well, and a description of the error."""
        told = f"{type(error).__name__} {error}"
        if known := words.lasting(told, self._url):
            return True, known
        if isinstance(error, FileNotFoundError):
            gone = "it is not in the bucket any longer"
            return True, f"{self._url} is not there" if self._done == "listed" else gone
        text = str(error).strip() or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror
        return False, words.passing(text, self._url, self._done, self._server)


def patiently(
    do: Callable[[], _T], pauses: Sequence[float], may_pass: Callable[[BucketError], bool]
) -> _T:
    """Do something, and again after each of these pauses, as long as its error may pass."""
    for pause in pauses:
        try:
            return do()
        except BucketError as error:
            if not may_pass(error):
                raise
        time.sleep(pause)
    return do()


def _is_busy(error: BucketError) -> bool:
    return words.is_busy(str(error))


def _tag(info: dict[str, Any]) -> str:
    for name in ("e_tag", "ETag", "etag", "blob_id", "mtime", "last_modified", "LastModified"):
        if info.get(name) is not None:
            return str(info[name])
    return str(info.get("size"))


def _filesystem(
    scheme: str, options: dict[str, Any], token: Callable[[], SessionToken | None]
) -> Any:
    """Return fsspec's file system of a scheme."""
    if scheme in _OBJECT_STORES:
        return _object_store(_OBJECT_STORES[scheme], options, token)
    if scheme in _FOLDERS:
        return SharedFolder()
    import fsspec

    now = token()
    given = {**options, **(now["fields"] if now else {})}
    try:
        return fsspec.filesystem(scheme, skip_instance_cache=True, **given)
    except ImportError as error:
        raise BucketError(f"{scheme}:// needs a package on the node ({error})") from None


def _object_store(
    scheme: str, options: dict[str, Any], token: Callable[[], SessionToken | None]
) -> Any:
    try:
        store = importlib.import_module("obstore.fsspec")
    except ImportError:
        raise BucketError(f"{scheme}:// needs the package obstore on the node") from None

    def credentials() -> dict[str, Any]:
        return _fresh(token)

    client = {"timeout": "60s", "connect_timeout": "10s"}
    if str(options.get("endpoint", "")).startswith("http://"):
        client["allow_http"] = True  # type: ignore[assignment]
    return store.FsspecStore(
        scheme,
        client_options=client,
        retry_config={"max_retries": 5},
        credential_provider=credentials if token() else None,
        skip_instance_cache=True,
        **options,
    )


def _fresh(token: Callable[[], SessionToken | None]) -> dict[str, Any]:
    """Return credentials; if they have expired, wait for the notebook to send new ones."""
    until = time.monotonic() + _RENEWED_WITHIN
    while True:
        now = token()
        assert now is not None
        left = None if now["expires"] is None else now["expires"] - time.time()
        if left is None or left > 0 or time.monotonic() > until:
            break
        time.sleep(1.0)
    expires = now["expires"]
    at = None if expires is None else datetime.fromtimestamp(expires, UTC)
    return {**now["fields"], "expires_at": at}
