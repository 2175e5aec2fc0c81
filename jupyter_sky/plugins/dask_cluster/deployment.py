"""Dask on a cluster, from the notebook: starts it when needed, keeps it complete, ends it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jupyter_sky.api.call import Call
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.network.forward import Forward
from jupyter_sky.cluster.network.pages import Page
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import SkyError
from jupyter_sky.imports import import_whole
from jupyter_sky.plugins.dask_cluster import on_rank
from jupyter_sky.plugins.dask_cluster.progress import DaskProgress
from jupyter_sky.plugins.dask_cluster.settings import (
    PAGE,
    Role,
    SchedulerPlace,
    WorkerOptions,
    security,
)
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.serialization import blobs, pickling

if TYPE_CHECKING:
    from jupyter_sky.plugins.dask_cluster.client import Client

READY_WITHIN = 60.0
"""Seconds for the workers to connect."""

_CLOSED_WITHIN = 1.0  # seconds
_HEAD = 0
_STOPPED = "the user stopped it"
_SIGNS = 4  # signs of activity within the idle time-out of a cluster, while Dask works
_ROLES: tuple[Role, ...] = ("client", "scheduler", "worker")

T = TypeVar("T")

_deployments: dict[str, Deployment] = {}


@contextlib.contextmanager
def deployed(cluster: Cluster, options: WorkerOptions) -> Iterator[Deployment]:
    """Provide Dask on a cluster; several plugins share it, and the last of them ends it."""
    deployment = _deployments.get(cluster.id)
    if deployment is None:
        deployment = _deployments[cluster.id] = Deployment(cluster, options)
    deployment.users += 1
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.users -= 1
        if not deployment.users:
            deployment.close()


def client_of(cluster: Cluster) -> Client:
    """Return the client of Dask on a cluster, starting Dask if necessary.

    Raises
    ------
    SkyError
        If it cannot be started.
    """
    deployment = _deployments.get(cluster.id)
    if deployment is None:
        assert cluster.runtime_env.client is not None
        deployment = cluster.runtime_env.client.add(deployed(cluster, WorkerOptions()))
    return deployment.client


class Deployment:
    """Dask on a cluster.

    Parameters
    ----------
    cluster
        The cluster.
    options
        The resources of its workers.

    Attributes
    ----------
    users
        How many plugins use it.
    progress
        Shows the progress of its tasks.
    """

    def __init__(self, cluster: Cluster, options: WorkerOptions) -> None:
        self.users = 0
        self._cluster = cluster
        self._options = options
        self._place: SchedulerPlace | None = None
        self._served: dict[int, int | None] = {}  # process ids of the ranks that have a worker
        self._head: int | None = None
        self._starting = threading.Lock()
        self._connecting = threading.Lock()
        self._changed = threading.Event()
        self._over = False
        self._forward: Forward | None = None
        self._client: Any = None
        self._is_connected = False
        self.progress = DaskProgress(cluster.work, self._stop_tasks)

    def start(self) -> None:
        """Start what is not running yet, and wait until all workers are connected.

        Raises
        ------
        SkyError
            If Dask is not installed here or on the nodes, or does not start.
        """
        if self._client is not None:
            return
        _check_installed()
        if any(rank.run for rank in self._cluster.state.ranks):
            raise SkyError("Dask is not connected while a run goes on: type `%sky dask` after it.")
        try:
            self._complete()
            # Show it from here on, since workers take a while to connect.
            threading.Thread(target=self._keep_whole, name="sky-dask", daemon=True).start()
            self._connect()
        except BaseException:
            self.close()
            raise
        self._is_connected = True
        self._cluster.listen(self._on_change)

    @property
    def client(self) -> Client:
        """The client of this notebook: a new one if its user has closed the last one."""
        with self._connecting:
            assert self._client is not None
            if self._client.status == "closed" and not self._over and self._cluster.alive:
                self._connect()
            client: Client = self._client
        return client

    def close(self) -> None:
        """Disconnect; scheduler and workers end with the cluster, or serve the next kernel."""
        if self._over:
            return
        self._over = True
        self._changed.set()
        if _deployments.get(self._cluster.id) is self:
            del _deployments[self._cluster.id]
        if self._client is not None:
            with contextlib.suppress(Exception):  # its scheduler may be gone already
                self._client.close(timeout=_CLOSED_WITHIN)
        self.progress.end()
        self._cluster.pages.hide(PAGE)
        if self._forward is not None:
            self._forward.close()

    # Processes on the ranks

    def _complete(self) -> None:
        """Start the scheduler and missing workers."""
        with self._starting:
            pids = self._pids()
            place = self._place or SchedulerPlace(_credentials())
            if pids.get(_HEAD) != self._head or self._place is None:
                [place] = _call(
                    self._cluster, [_HEAD], partial(on_rank.start_scheduler, place)
                ).values()
                self._place, self._head = place, pids.get(_HEAD)
                self.progress.end()  # a scheduler that is gone says no more of its tasks
            if missing := [rank for rank in pids if self._served.get(rank) != pids[rank]]:
                start = partial(on_rank.start_worker, place, self._options)
                _call(self._cluster, missing, start)
            self._served = pids

    def _pids(self) -> dict[int, int | None]:
        return {rank.rank: rank.pid for rank in self._cluster.state.ranks}

    def _on_change(self) -> None:
        if not self._cluster.alive or self._pids() != self._served:
            self._changed.set()

    def _keep_whole(self) -> None:
        """Start missing workers on ranks that were added or replaced.

        While this waits for workers, or tasks are waiting or running, it makes runs from time to
        time so that the idle time-out does not end the cluster.
        """
        idle = self._cluster.spec.idle_timeout
        pause = None if idle is None else idle / _SIGNS
        while not self._over:
            self._changed.wait(pause)
            self._changed.clear()
            if self._cluster.state.phase in (ClusterPhase.LOST, ClusterPhase.DOWN):
                self.close()
            if self._over or not self._cluster.alive or not self._cluster.state.settled:
                continue
            try:
                if self._pids() != self._served:
                    self._complete()
                elif pause is not None and self._is_busy():
                    _call(self._cluster, [_HEAD], on_rank.be_used)
            except (SkyError, RemoteError, Interrupted) as error:
                # The next change, or the next run, finds the ranks in order again.
                logging.getLogger(__name__).info("Dask was not completed: %s", error)
            except Exception:  # without this thread no later change would be seen
                logging.getLogger(__name__).exception("Dask was not completed")

    def _is_busy(self) -> bool:
        if not self._is_connected:
            return True
        return any(each.status == "pending" for each in list(self._client.futures.values()))

    def _stop_tasks(self) -> None:
        """Cancel the tasks of this notebook, and interrupt those that have begun."""
        from distributed import Future

        client = self._client
        pending = [key for key, each in list(client.futures.items()) if each.status == "pending"]
        if pending:
            client.cancel([Future(key, client) for key in pending], force=True, msg=_STOPPED)
            client.end_unwanted()

    # The notebook's side

    def _connect(self) -> None:
        import distributed

        from jupyter_sky.plugins.dask_cluster.client import Client
        from jupyter_sky.plugins.dask_cluster.counting import TOPIC

        connect: Any = distributed  # without types

        assert self._place is not None
        if self._forward is None:
            self._forward = self._cluster.forward(
                _HEAD, self._place.host, self._place.port, READY_WITHIN
            )
        secure = connect.Security(**security(self._place.credentials["client"], "client"))
        address = f"tls://127.0.0.1:{self._forward.port}"
        if self._place.pages:
            context = secure.get_connection_args("client")["ssl_context"]
            where = self._place.host, self._place.pages
            self._cluster.pages.show(Page(PAGE, "Dask", _HEAD, *where, "status", context))
        self._client = Client(address, security=secure, timeout=READY_WITHIN, cluster=self._cluster)
        client = self._client
        try:
            client.wait_for_workers(len(self._served), timeout=READY_WITHIN)
        except TimeoutError:
            raise SkyError(
                f"Dask's workers did not start within {READY_WITHIN:.0f} s: `%sky logs 0` shows "
                "what they said."
            ) from None
        client.subscribe_topic(TOPIC, self.progress.on_tasks)


def _call(cluster: Cluster, ranks: Sequence[int], function: Callable[[], T]) -> dict[int, T]:
    """Call a function on ranks, as a run of the cluster."""
    pickled = pickling.dump(Call(function), "the start of Dask")
    packed, parts = blobs.pack(pickled)
    task = Task(
        ranks=tuple(ranks), call=packed, cells=pickled.cells, blobs=parts, show=(), title="Dask"
    )
    run = cluster.run(task)
    run.follow()
    return cast("dict[int, T]", run.values())


def _credentials() -> dict[Role, Credentials]:
    try:
        issued = issue_credentials([f"dask {role}" for role in _ROLES])
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None
    return dict(zip(_ROLES, issued, strict=True))


def _check_installed() -> None:
    try:
        import_whole("distributed", "joblib")
    except ModuleNotFoundError as error:
        raise _not_installed(error) from None


def _not_installed(error: ModuleNotFoundError) -> SkyError:
    # In quotes: shells such as zsh take the brackets for a pattern of file names.
    return SkyError(
        f"{error.name} is not installed where the notebook runs: "
        "run `%pip install 'jupyter-sky[dask]'`."
    )
