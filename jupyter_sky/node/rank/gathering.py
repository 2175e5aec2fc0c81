"""Gathering what is sharded: the ranks bring together whole what the notebook asks one of them for.

A part of a sharded model is of no use without the others, and to gather them is a collective: all
ranks that have a part take part in it. So every rank of a run is told what any of them is asked
for, and after its cell

1. looks at what it has under these names, and writes a plan of it into the process group's store;
2. goes on, if nothing of it is sharded. Otherwise it waits for the plans of the ranks that have
   other parts, and compares: where they differ, or one of them cannot gather, none begins;
3. gathers tensor by tensor. Who was asked puts each one where the node keeps blobs, and maps it
   from there: it is in the node's memory once. The others drop it.

A rank waits in Python, so that Stop reaches it: also that by which the agent stops the ranks of a
run of which one has failed, and so never comes to write its plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_ranks
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.models import sharded
from jupyter_sky.serialization.models.sharded import Sharded, Whole, WholeParameter
from jupyter_sky.transport.present_run import group_store

_LONGEST_PAUSE = 0.05


class _Plan(TypedDict):
    """What a rank has under a name, for the ranks that have other parts of it.

    Attributes
    ----------
    steps
        A digest of what it will gather, in which order; empty if nothing is sharded.
    able
        Whether it can.
    """

    steps: str
    able: bool


class GatheredFiles:
    """The tensors that were gathered for the notebook, in files among the blobs of the node.

    Parameters
    ----------
    folder
        Where the node's blobs are.

    Attributes
    ----------
    whole
        The tensors, for the pickler.
    digests
        The digest of each that is in a file, by address and size, for `blobs.pack`.
    """

    def __init__(self, folder: Path) -> None:
        self.whole = Whole()
        self.digests: dict[tuple[int, int], str] = {}
        self._folder = folder
        self._files: dict[str, Path] = {}

    def keep(self, tensor: Any) -> Any:
        """Return a tensor that is in the node's memory once, among its blobs.

        Raises
        ------
        OSError
            When there is no room for it.
        """
        import torch

        here = tensor.detach().cpu().contiguous()
        memory = here.reshape(-1).view(torch.uint8).numpy()
        if memory.nbytes <= blobs.INLINE:
            return here.clone()
        key = blobs.digest(memory)
        mapped = blobs.map_privately(self._written(key, memoryview(memory)), memory.nbytes)
        kept = torch.frombuffer(mapped, dtype=torch.uint8).view(here.dtype).reshape(here.shape)
        self.digests[kept.data_ptr(), memory.nbytes] = key
        return kept

    def _written(self, key: str, memory: memoryview) -> Path:
        if (blob := self._folder / key).exists():
            return blob
        if key not in self._files:
            # The agent removes what this process leaves unfinished if it is killed.
            part = self._folder / f"{os.getpid()}-{uuid.uuid4().hex}.part"
            self._files[key] = part
            part.write_bytes(memory)
        return self._files[key]

    def take(self, key: str) -> Path | None:
        """Return the file that has the content of a blob, for the caller to give it its name."""
        return self._files.pop(key, None)

    def discard(self) -> None:
        """Remove the files that nobody has taken."""
        for path in self._files.values():
            path.unlink(missing_ok=True)
        self._files.clear()


class Gatherer:
    """Gathers what runs are asked for, together with the gatherers of the other ranks.

    Parameters
    ----------
    rank
        The rank's number.
    folder
        Where the node's blobs are.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self._rank = rank
        self._folder = folder
        self._written: tuple[Any, str] | None = None

    @contextmanager
    def gathered(
        self,
        run: str,
        everyone: Sequence[int],
        values: Mapping[str, Any],
        wanted: Collection[str],
    ) -> Iterator[GatheredFiles]:
        """Gather what is sharded of some values; the files are there within the block.

        Parameters
        ----------
        run
            The run.
        everyone
            The ranks that take part in it.
        values
            What this rank has of what any of them is asked for, in an order that all share.
        wanted
            The names that this rank is asked for; of the others it only helps to gather the values.

        Raises
        ------
        UsageError
            When something that is wanted cannot be gathered.
        """
        files = GatheredFiles(self._folder)
        try:
            found = {name: sharded.find(value) for name, value in values.items()}
            store = group_store() if len(everyone) > 1 or any(found.values()) else None
            plans = self._tell_plans(store, run, everyone, found, wanted) if store else {}
            for name, parts in found.items():
                if parts and name in wanted:
                    _check(name, parts, everyone, store, self._folder)
                if parts and store and _all_agree(store, run, name, plans[name], parts, wanted):
                    _gather(name, parts, files if name in wanted else None)
            yield files
        finally:
            files.discard()

    def _tell_plans(
        self,
        store: Any,
        run: str,
        everyone: Collection[int],
        found: Mapping[str, Sharded],
        wanted: Collection[str],
    ) -> dict[str, _Plan]:
        plans: dict[str, _Plan] = {}
        for name, parts in found.items():
            steps = hashlib.sha256("\n".join(parts.plan()).encode()).hexdigest() if parts else ""
            room = name not in wanted or _has_room(parts, self._folder)
            plans[name] = {"steps": steps, "able": room and parts.ranks <= set(everyone)}
        if self._written and self._written[0] is store:
            # All ranks have come to the end of that run.
            store.delete_key(self._written[1])
        self._written = store, _key(run, self._rank)
        store.set(self._written[1], json.dumps(plans))
        return plans


def _all_agree(
    store: Any,
    run: str,
    name: str,
    plan: _Plan,
    parts: Sharded,
    wanted: Collection[str],
) -> bool:
    """Return whether the ranks that have the parts are about to gather them together."""
    if not plan["able"]:
        return False
    ranks = sorted(parts.ranks)
    keys = [_key(run, rank) for rank in ranks]
    pause = 0.001
    while not store.check(keys):  # not `wait`, in which no interrupt would be heard
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    others = [json.loads(store.get(key)).get(name) for key in keys]
    different = [rank for rank, other in zip(ranks, others, strict=True) if other != plan]
    if different and name in wanted:
        raise UsageError(
            f"{name} is sharded over {format_ranks(ranks)}, but {format_ranks(different)} "
            f"cannot take part in gathering it: {name} has to be the same model on all of them."
        )
    return not different


def _check(
    name: str,
    parts: Sharded,
    everyone: Collection[int],
    store: Any,
    folder: Path,
) -> None:
    """Refuse to gather for this rank what cannot be gathered."""
    if store is None:
        raise UsageError(
            f"{name} is sharded, and the process group that could gather it has been destroyed: "
            "leave destroy_process_group() out of the cell."
        )
    if missing := parts.ranks.difference(everyone):
        raise UsageError(
            f"{name} is sharded over {format_ranks(sorted(parts.ranks))}, and "
            f"{format_ranks(sorted(missing))} did not take part: run this on all of its ranks."
        )
    if not _has_room(parts, folder):
        free = format_bytes(shutil.disk_usage(folder).free)
        raise UsageError(
            f"{name} has {format_bytes(parts.size)}, and {free} are free where the node keeps what "
            "it sends: keep it where the ranks are, with sky.save(path, model=…)."
        )


def _has_room(parts: Sharded, folder: Path) -> bool:
    return parts.size <= shutil.disk_usage(folder).free


def _key(run: str, rank: int) -> str:
    return f"gathering of {run} by {rank}"


def _gather(name: str, parts: Sharded, files: GatheredFiles | None) -> None:
    """Take part in gathering; keep what comes if there are files to keep it in."""
    import torch

    trouble: OSError | None = None

    def keep(tensor: Any) -> Any:
        nonlocal trouble
        if files is None or trouble:
            return None
        try:
            return files.keep(tensor)
        except OSError as error:
            trouble = error  # told at the end: the others count on this rank
            return None

    with torch.no_grad():
        for tensor in parts.tensors:
            kept = keep(tensor.full_tensor())
            if files:
                files.whole.tensors[id(tensor)] = kept
        for unit in parts.units:
            for module, parameter_name, kept in _gathered_unit(unit, keep):
                if files:
                    files.whole.parameters.setdefault(id(module), {})[parameter_name] = kept
    if trouble:
        raise UsageError(
            f"{name} cannot be brought to the notebook: there is no room for its "
            f"{format_bytes(parts.size)} where the node keeps what it sends ({trouble.strerror})."
        )


def _gathered_unit(unit: Any, keep: Any) -> Iterator[tuple[Any, str, WholeParameter]]:
    """Gather one module under FSDP1; yield each of its parameters with its module and name."""
    flat = sharded.flat_parameter(unit)
    if flat is None:
        return
    kept: dict[tuple[int, str], WholeParameter] = {}
    with type(unit).summon_full_params(unit, recurse=False, writeback=False):
        for name, module, _ in flat._param_infos:
            parameter = getattr(module, name)
            # Of a tensor that shares its memory with numpy, torch could not free that memory again.
            whole = getattr(parameter, "full_tensor", parameter.clone)()
            kept[id(module), name] = WholeParameter(keep(whole), parameter.requires_grad)
            yield module, name, kept[id(module), name]
    for name, module, _, first_name, first_module, _ in flat._shared_param_infos:
        yield module, name, kept[id(first_module), first_name]
