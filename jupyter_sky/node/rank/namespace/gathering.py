"""Gathering sharded values: the ranks assemble whole tensors when the notebook asks for them.

A part of a sharded model is of no use without the others, and gathering them is a collective, in
which every rank with a part takes part. So every rank of a run is told which names any of them is
asked for, and after its cell it

1. looks for sharded parts of these names, and writes its plan into the process group's store;
2. is done if nothing is sharded. Otherwise it waits for the plans of the ranks that have the other
   parts: if these differ, or one of them cannot gather, none begins;
3. gathers tensor by tensor. A rank that was asked puts each of them among the node's blobs and maps
   it from there, so that it is in the node's memory once. The others drop it.

A rank waits in Python, so that Stop reaches it. This matters when another rank has failed and never
writes its plan: the agent then stops the others.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, format_ranks
from jupyter_sky.node.blobs.partial_blob import new_part
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.models import sharded
from jupyter_sky.serialization.models.sharded import Sharded, Whole, WholeParameter
from jupyter_sky.transport.present_run import group_store

_LONGEST_PAUSE = 0.05


class _Plan(TypedDict):
    """What a rank is about to gather for a name, for comparison by the other ranks.

    Attributes
    ----------
    steps
        A digest of the steps that it will take, in order; empty if nothing is sharded.
    able
        Whether it is able to.
    """

    steps: str
    able: bool


class GatheredFiles:
    """The tensors that were gathered for the notebook, in files among the node's blobs.

    Parameters
    ----------
    folder
        Where the node's blobs are.

    Attributes
    ----------
    whole
        The tensors, for the pickler.
    digests
        The digest of each that is in a file, for `blobs.pack`.
    """

    def __init__(self, folder: Path) -> None:
        self.whole = Whole()
        self.digests = blobs.MemoryDigests()
        self._folder = folder
        self._files: dict[str, Path] = {}

    def keep(self, tensor: Any) -> Any:
        """Return a copy of a tensor that lies among the node's blobs.

        Raises
        ------
        OSError
            If there is no room for it.
        """
        import torch

        here = tensor.detach().cpu().contiguous()
        memory = here.reshape(-1).view(torch.uint8).numpy()
        if memory.nbytes <= blobs.INLINE:
            return here.clone()
        key = blobs.digest(memory)
        mapped = blobs.map_privately(self._written(key, memoryview(memory)), memory.nbytes)
        kept = torch.frombuffer(mapped, dtype=torch.uint8)
        self.digests.note(kept.numpy(), key, owner=mapped)
        return kept.view(here.dtype).reshape(here.shape)

    def _written(self, key: str, memory: memoryview) -> Path:
        if (blob := self._folder / key).exists():
            return blob
        if key not in self._files:
            self._files[key] = new_part(self._folder)
            self._files[key].write_bytes(memory)
        return self._files[key]

    def take(self, key: str) -> Path | None:
        """Return the file with the content of a blob, for the caller to rename."""
        return self._files.pop(key, None)

    def discard(self) -> None:
        """Remove the files that were not taken."""
        for path in self._files.values():
            path.unlink(missing_ok=True)
        self._files.clear()


class Gatherer:
    """Gathers the values that runs are asked for, together with the other ranks.

    Parameters
    ----------
    rank
        The rank's number.
    folder
        Where the node's blobs are.

    Attributes
    ----------
    rank
        As above.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
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
        """Gather the sharded parts of values; the files exist within the block.

        Parameters
        ----------
        run
            The run.
        everyone
            The ranks that take part in it.
        values
            This rank's values of all requested names, in an order that all ranks share.
        wanted
            The names that this rank is asked for; for the others it only helps to gather.

        Raises
        ------
        UsageError
            If a wanted value cannot be gathered.
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
            # All ranks have finished that run.
            store.delete_key(self._written[1])
        self._written = store, _key(run, self.rank)
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
    """Return whether all ranks that hold parts are about to gather the same."""
    if not plan["able"]:
        return False
    ranks = sorted(parts.ranks)
    keys = [_key(run, rank) for rank in ranks]
    pause = 0.001
    while not store.check(keys):  # not `wait`, during which an interrupt would not be noticed
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
    """Raise an error if this rank's wanted values cannot be gathered."""
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
    """Take part in gathering; keep the tensors if there are files for them."""
    import torch

    trouble: OSError | None = None

    def keep(tensor: Any) -> Any:
        nonlocal trouble
        if files is None or trouble:
            return None
        try:
            return files.keep(tensor)
        except OSError as error:
            trouble = error  # reported at the end, since the others count on this rank
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
        raise no_room(name, parts.size, trouble)


def no_room(names: str, size: int, error: OSError) -> UsageError:
    """Return the error for values that the node cannot keep until they are sent."""
    return UsageError(
        f"{names} cannot be brought to the notebook: the node has no room for {format_bytes(size)} "
        f"of it ({error.strerror}). Leave it on the ranks, or save it in a volume."
    )


def _gathered_unit(unit: Any, keep: Any) -> Iterator[tuple[Any, str, WholeParameter]]:
    """Gather one module under FSDP1; yield its parameters, with their modules and names."""
    flat = sharded.flat_parameter(unit)
    if flat is None:
        return
    kept: dict[tuple[int, str], WholeParameter] = {}
    with type(unit).summon_full_params(unit, recurse=False, writeback=False):
        for name, module, _ in flat._param_infos:
            parameter = getattr(module, name)
            # If a tensor shared its memory with numpy, torch could not free it any more.
            whole = getattr(parameter, "full_tensor", parameter.clone)()
            kept[id(module), name] = WholeParameter(keep(whole), parameter.requires_grad)
            yield module, name, kept[id(module), name]
    for name, module, _, first_name, first_module, _ in flat._shared_param_infos:
        yield module, name, kept[id(first_module), first_name]
