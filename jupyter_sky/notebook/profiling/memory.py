"""The memory of ranks as text: torch's on GPUs, or of processes, and which has least left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jupyter_sky.cluster.profiling.records import Fetched
from jupyter_sky.formatting import aligned, format_bytes, format_ranks, format_share, keys_by_value
from jupyter_sky.transport.protocol.profiling import MemoryRecord

_MOST_ROWS = 64


def memory_text(fetched: Fetched, title: str) -> str:
    """Return the ranks' memory records as lines."""
    return "\n".join(_lines(fetched.by_rank, fetched.missing, title))


def _lines(
    records: Mapping[int, MemoryRecord], missing: tuple[int, ...], title: str
) -> Iterator[str]:
    on_gpu = {rank: each for rank, each in records.items() if each["devices"]}
    others = {rank: each for rank, each in records.items() if not each["devices"]}
    if on_gpu:
        yield f"{title}: memory of torch. {_nearest_on_gpu(on_gpu)}"
        rows = [["", "GPU", "most in use", "most reserved", "now in use", "of all processes"]]
        for rank, record in on_gpu.items():
            for device in record["devices"]:
                rows.append(
                    [
                        f"rank {rank}",
                        f"{device['device']} {device['name']}",
                        format_bytes(device["peak_allocated"]),
                        format_bytes(device["peak_reserved"]),
                        format_bytes(device["allocated"]),
                        format_share(device["used"], device["total"]),
                    ]
                )
        yield from _table(rows)
    if others:
        reasons = keys_by_value({rank: each["why_no_gpu"] for rank, each in others.items()})
        why = "; ".join(f"{reason} on {format_ranks(ranks)}" for reason, ranks in reasons.items())
        yield (
            f"{title}: {why}, so this is the memory of their processes. {_nearest_machine(others)}"
        )
        rows = [["", "most in the cell", "now", "machine"]]
        for rank, record in others.items():
            used = record["total"] - record["available"]
            rows.append(
                [
                    f"rank {rank}",
                    format_bytes(record["peak"]),
                    format_bytes(record["process"]),
                    format_share(used, record["total"]),
                ]
            )
        yield from _table(rows)
    if missing:
        yield f"{format_ranks(missing)}: nothing was recorded."


def _nearest_on_gpu(records: Mapping[int, MemoryRecord]) -> str:
    devices = [(rank, each) for rank, record in records.items() for each in record["devices"]]
    # Other processes use GPU memory, too; the peak of reserved memory is free again now.
    rank, device = max(
        devices, key=lambda each: max(each[1]["peak_reserved"], each[1]["used"]) / each[1]["total"]
    )
    most = max(device["peak_reserved"], device["used"])
    return (
        f"Nearest to running out was rank {rank}: {format_share(most, device['total'])} "
        f"({100 * most / device['total']:.0f} %)."
    )


def _nearest_machine(records: Mapping[int, MemoryRecord]) -> str:
    rank, record = max(records.items(), key=lambda each: each[1]["peak"] / each[1]["total"])
    return (
        f"Rank {rank} has used most, {format_bytes(record['peak'])}; its machine has "
        f"{format_bytes(record['available'])} left of {format_bytes(record['total'])}."
    )


def _table(rows: list[list[str]]) -> Iterator[str]:
    yield from (f"   {row}" for row in aligned(rows[: _MOST_ROWS + 1]))
    if len(rows) > _MOST_ROWS + 1:
        yield f"   … {len(rows) - _MOST_ROWS - 1} more"
