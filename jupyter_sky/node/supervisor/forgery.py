"""Checks that a rank speaks only for itself."""

from __future__ import annotations

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message


def is_forged(process: RankProcess, message: Message) -> bool:
    """Return whether a rank may not send a message that arrived on its socket."""
    match message:
        case {"reserved": int(), "port": int()} | {"reserved": int(), "error": str()}:
            return process.rank != 0
        case {"inspected": int(), "frames": list(), "collectives": list(), "recent": list()}:
            return False
        case {"sampled": int()}:
            return False
        case {"recorded": process.run, "kind": str(), "data": bytes()} | {"code_over": process.run}:
            return process.run is None
        case {"looked": int(), "seen": {"rank": process.rank}}:
            return False
        case {
            "event": "rank_done" | "told" | "metrics" | "prompted" | "saved",
            "rank": process.rank,
            "run": process.run,
        }:
            return process.run is None
        case {"event": "formed" | "display", "rank": process.rank}:
            return False
    return True
