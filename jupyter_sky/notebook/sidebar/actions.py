"""What the sidebar asks this kernel to do with a cluster that it is connected to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from jupyter_sky.api import pools_up
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.commands.control import (
    interrupt_run,
    interrupt_runs,
    restart_ranks,
    scale_cluster,
    where_ranks_are,
)
from jupyter_sky.notebook.commands.life.stops import foresee_stop, stop_cluster
from jupyter_sky.notebook.panel.strip import record_bundle
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.sidebar.answers import answer


class ActionRequest(TypedDict):
    """A request, as the Jupyter server passes it on from the page.

    Attributes
    ----------
    cluster
        The cluster's id.
    run
        The id of the run whose record is asked for, with ``record``, or that is to be stopped, with
        ``interrupt``, which stops what runs now with None.
    page
        The name of the page to which the way is asked for; with ``page``.
    question
        What is asked of the cluster, as `answers` beside this knows it; with ``ask``.
    ranks
        The ranks to restart, all of them with None; with ``restart``.
    nodes
        How many nodes the cluster is to have; with ``scale``.
    max_price
        Dollars an hour that the user has agreed to for all of them; with ``scale``.
    dry_run
        Whether only to say what would be lost; with ``stop``, which stops machines.
    """

    action: Literal[
        "interrupt", "where", "restart", "scale", "stop", "down", "record", "runs", "page", "ask"
    ]
    cluster: str
    run: NotRequired[str | None]
    page: NotRequired[str]
    question: NotRequired[dict[str, object]]
    ranks: NotRequired[list[int] | None]
    nodes: NotRequired[int]
    max_price: NotRequired[float | None]
    dry_run: NotRequired[bool]


class SidebarActions:
    """Does what the sidebar asks for.

    Parameters
    ----------
    session
        The clusters of this notebook.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, request: Mapping[str, object]) -> str:
        """Do what a request asks for, and return a sentence about the result, or JSON.

        Called in a thread beside the user's.

        Parameters
        ----------
        request
            An `ActionRequest`, which is not trusted to be one.

        Raises
        ------
        SkyError
            When it cannot be done.
        Interrupted
            If the user stops a run that is part of it.
        """
        cluster = self._cluster(request.get("cluster"))
        if request.get("action") == "record":
            return self._record(cluster, str(request.get("run")))
        if request.get("action") == "runs":
            return json.dumps({"ended": cluster.ended_runs()})
        if request.get("action") == "page":
            return cluster.pages.way(str(request.get("page"))).as_json()
        if request.get("action") == "ask":
            return _answer(cluster, request.get("question"))
        if request.get("action") == "interrupt" and (run := request.get("run")):
            return interrupt_run(cluster, str(run))
        if request.get("action") == "stop" and request.get("dry_run"):
            _check_not_of_pool(cluster, "stop")
            return foresee_stop(cluster)
        match request:
            case {"action": "interrupt"}:
                return interrupt_runs(cluster)
            case {"action": "where"}:
                return where_ranks_are(cluster)
            case {"action": "restart", "ranks": list() | None as ranks}:
                _check_alive(cluster)
                return restart_ranks(cluster, ranks)
            case {"action": "scale", "nodes": int() as nodes}:
                _check_not_of_pool(cluster, "scale")
                _check_alive(cluster)
                price = request.get("max_price")
                agreed = price if isinstance(price, int | float) else None
                scaled = scale_cluster(self._session, cluster, nodes, agreed=agreed)
                return f"{cluster.name}: {scaled}"
            case {"action": "stop"}:
                _check_not_of_pool(cluster, "stop")
                _check_alive(cluster)
                return stop_cluster(self._session, cluster, lambda lost: None)
            case {"action": "down"}:
                _check_not_of_pool(cluster, "down")
                _check_has_its_name(cluster)
                return self._session.down(cluster.name)
        raise UsageError(f"this version of jupyter_sky does not know {request.get('action')!r}.")

    def _record(self, cluster: Cluster, run: str) -> str:
        """Return how a run goes or how it ended, as JSON: a `Record` of the server's schema."""
        snapshot = cluster.snapshot(run=run)
        if snapshot["run"] is None:
            raise SkyError("that run is no longer known.")
        bundle = record_bundle(snapshot, is_open=False)
        record = {"snapshot": snapshot, "html": bundle["text/html"], "plain": bundle["text/plain"]}
        is_of_several = len(snapshot["run"]["shown"]) > 1
        panels = self._session.panels
        output = panels.kept_output(run) if is_of_several else cluster.run_output(run)
        return json.dumps({**record, "text": output.text, "cut": output.is_cut})

    def _cluster(self, identity: object) -> Cluster:
        for cluster in [*self._session.connected_clusters(), *pools_up.clusters()]:
            if cluster.id == identity:
                return cluster
        raise SkyError("this notebook is no longer connected to that cluster.")


def _answer(cluster: Cluster, question: object) -> str:
    return json.dumps(answer(cluster, question if isinstance(question, dict) else {}))


def _check_has_its_name(cluster: Cluster) -> None:
    """Refuse a cluster that has ended, if another one was started under its name."""
    row = registry.find(cluster.name)
    if row and row.id != cluster.id:
        raise SkyError(
            f"this cluster {cluster.name} has ended, and another of its name was started: end "
            "that one at its own card, if you mean it."
        )


def _check_not_of_pool(cluster: Cluster, action: str) -> None:
    if cluster not in pools_up.clusters():
        return
    of_pool = f"{cluster.name} is of a pool in this notebook"
    if action == "scale":
        raise UsageError(f"{of_pool}: scale it with `pool.scale(nodes)`.")
    raise UsageError(
        f"{of_pool}, and ends with its `with` block: stop the cell, or restart the kernel."
    )


def _check_alive(cluster: Cluster) -> None:
    if not cluster.alive:
        raise SkyError(
            f"cluster {cluster.name} is lost: run its cell again, or `%sky restart` there."
        )
