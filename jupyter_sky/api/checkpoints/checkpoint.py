"""Checkpoints of training: `save` and `load`, based on ``torch.distributed.checkpoint``.

Each rank writes and reads only its own parts, so nothing is gathered, and a checkpoint can be
loaded on another number of ranks. `folder` stores it, and makes saving atomic.
"""

from __future__ import annotations

import inspect
import io
import pickle
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from os import PathLike
from typing import TYPE_CHECKING, Any

from jupyter_sky.api.checkpoints.folder import CheckpointFolder
from jupyter_sky.api.checkpoints.saving import Saving, explained
from jupyter_sky.api.checkpoints.together import CheckpointGroup
from jupyter_sky.errors import UsageError
from jupyter_sky.transport import present_run
from jupyter_sky.transport.metrics import metric_log

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_VALUES = "_values"  # the entry for values that are neither models nor optimizers

_latest: Saving | None = None


def save(path: str | PathLike[str], *, wait: bool = True, **values: Any) -> Saving:
    """Save a checkpoint: all ranks call this together, and each writes its own parts.

    A previous checkpoint at the same path is kept until this one is complete, and then removed. A
    save that is interrupted changes nothing.

    Parameters
    ----------
    path
        A folder that all nodes share; a folder on each node's own disk, which then keeps the parts
        of the node's ranks; or a folder in a bucket (``"s3://…"``), for which fsspec and its
        driver, such as s3fs, must be installed on the nodes (``--pip s3fs``).
    wait
        Whether to return only when it is saved. With ``False``, a copy is made in main memory, and
        a thread saves it while the ranks continue; wait for the returned `Saving` before the
        cluster is scaled or ends.
    **values
        The values to save, by name: models, which may be wrapped or sharded; optimizers, along with
        their models; objects with a ``state_dict``, such as schedulers; and anything that can be
        pickled, like ``step=100``. For values that are neither models nor optimizers, the value of
        rank 0 is saved.

    Raises
    ------
    UsageError
        If a rank cannot write there, the model of an optimizer is not given, or not all ranks of
        the process group call this.
    SkyError
        If it could not be saved.

    Examples
    --------
    In a cell that begins with ``%%sky``:

    >>> sky.save("/shared/run-1", model=model, optimizer=optimizer, step=step)
    """
    global _latest
    checkpoint, began = _checkpoint(), time.monotonic()
    _finish_latest()
    together = CheckpointGroup()
    # A further attempt does not repeat these steps: their metrics must not be lost with a node.
    metric_log.flush()
    together.meet("sky.save")
    state = _state(values)
    if not together.is_first:  # torch would save those of the rank that has least to write
        del state[_VALUES]
    names = _kinds(values)
    folder = CheckpointFolder.begin(str(path), names, together)
    try:
        future = _written(checkpoint, state, folder, together, wait)
    except BaseException as error:
        reason = folder.reason(error)
        folder.discard()
        _raise_interrupt(error)
        raise explained(reason, f"the checkpoint {folder.path} was not saved") from error
    _latest = Saving(folder, future, began, values.get("step"))
    if wait:
        _latest.wait()
    return _latest


def restored() -> str | None:
    """Return the checkpoint to resume from, if ``--retry`` runs this cell again.

    Returns
    -------
    str or None
        The path of the last checkpoint of an earlier attempt at the cell, the same on every rank.
        None in the first attempt, if none was saved, and outside a cluster: the cell then begins
        from the start, whatever older checkpoints exist.

    Examples
    --------
    In a cell that begins with ``%%sky --retry 3``:

    >>> step = 0
    >>> if path := sky.restored():
    ...     step = sky.load(path, model=model, optimizer=optimizer)["step"]
    """
    return present_run.checkpoint()


def load(path: str | PathLike[str], **values: Any) -> dict[str, Any]:
    """Load a checkpoint into the given objects; all ranks, of any number, call this together.

    Parts of it are unpickled, which can run arbitrary code: load only checkpoints that you trust.

    Parameters
    ----------
    path
        The path that was given to `save`. Parts that are only on one node's disk are sent to the
        nodes that need them.
    **values
        The models, optimizers and other objects with a ``load_state_dict`` to restore in place, by
        the names under which they were saved. Saved objects that are not named here are ignored.

    Returns
    -------
    dict
        The other saved values, like ``{"step": 100}``.

    Raises
    ------
    UsageError
        If there is no checkpoint, parts of it are missing on all nodes, a name was not saved, or
        not all ranks of the process group call this.

    Examples
    --------
    >>> step = sky.load("/shared/run-1", model=model, optimizer=optimizer)["step"]
    """
    checkpoint = _checkpoint()
    _finish_latest()
    together = CheckpointGroup()
    together.meet("sky.load")
    folder = CheckpointFolder.open(str(path), together)
    _check_names(values, folder)
    state = {**_state(values, with_others=False), _VALUES: b""}
    with _quiet():
        try:
            alone = _alone(checkpoint.load, together)
            checkpoint.load(state, storage_reader=folder.reader(), **alone)
        except BaseException as error:
            _raise_interrupt(error)
            raise explained(error, f"the checkpoint {folder.path} was not loaded") from error
        _restore(values, state)
    others = pickle.loads(state[_VALUES])
    for name, value in values.items():
        if name in others:
            value.load_state_dict(_unpickled(others.pop(name)))
    kinds = folder.names
    return {name: _unpickled(data) for name, data in others.items() if kinds[name] == "value"}


# Collecting and restoring state


def _kinds(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of each value, which decides how it is restored."""
    return {
        name: "sharded" if _is_model(value) or _is_by_parameter(value) else _kind_of_other(value)
        for name, value in values.items()
    }


def _kind_of_other(value: Any) -> str:
    return "state" if _has_state(value) else "value"


def _state(values: Mapping[str, Any], *, with_others: bool = True) -> dict[str, Any]:
    """Return the state of all values; for models and optimizers, this rank's parts."""
    from torch.distributed.checkpoint import state_dict

    models = {name: value for name, value in values.items() if _is_model(value)}
    state: dict[str, Any] = {}
    others: dict[str, Any] = {}
    with _quiet():
        for name, value in values.items():
            if name in models:
                state[name] = state_dict.get_model_state_dict(value)
            elif _is_by_parameter(value):
                model = _model_of(name, value, models)
                state[name] = _optimizer_state(name, model, value)
            else:
                others[name] = value.state_dict() if _has_state(value) else value
    if with_others:
        state[_VALUES] = _pickled(others)
    return state


def _optimizer_state(name: str, model: nn.Module, optimizer: Optimizer) -> Any:
    from torch.distributed.checkpoint import state_dict

    kind, when = type(optimizer).__name__, "" if optimizer.state else " before its first step"
    rates = [group.get("lr") for group in optimizer.param_groups]
    try:
        return state_dict.get_optimizer_state_dict(model, optimizer)
    except Exception as error:
        # torch has a new one make a step at a rate of zero, which not all kinds can.
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group.update({} if rate is None else {"lr": rate})
        raise explained(error, f"torch cannot tell the state of {name} ({kind}){when}") from error


def _restore(values: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Restore the loaded state of models and optimizers."""
    from torch.distributed.checkpoint import state_dict

    models = {name: value for name, value in values.items() if _is_model(value)}
    for name, value in values.items():
        if name in models:
            state_dict.set_model_state_dict(value, state[name])
        elif _is_by_parameter(value):
            model = _model_of(name, value, models)
            state_dict.set_optimizer_state_dict(model, value, state[name])


def _pickled(others: Mapping[str, Any]) -> bytes:
    import torch

    name, pickled = "", {}
    try:
        for name, value in others.items():
            file = io.BytesIO()
            torch.save(value, file)
            pickled[name] = file.getvalue()
    except Exception as error:
        raise UsageError(f"{name} cannot be saved: {error}") from error
    return pickle.dumps(pickled)


def _unpickled(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _model_of(name: str, optimizer: Optimizer, models: Mapping[str, nn.Module]) -> nn.Module:
    """Return the model of an optimizer; of several, a module that has each under its name."""
    from torch import nn

    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parts = {each: own & set(map(id, model.parameters())) for each, model in models.items()}
    if whole := [each for each, part in parts.items() if part == own]:
        return models[whole[0]]
    if not any(parts.values()):
        raise UsageError(
            f"{name} is an optimizer, and its model is not given: name it too, as in "
            f"sky.save(path, model=model, {name}={name})."
        )
    if own.difference(*parts.values()):
        raise UsageError(
            f"{name} is an optimizer, and some of what it optimizes is in no model that is given: "
            "name each of its models (a parameter by itself can be in a `torch.nn.ParameterList`)."
        )
    together = nn.Module()
    for each, part in parts.items():
        if part:
            together.add_module(f"model {each}", models[each])  # which no attribute is named
    return together


def _is_model(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _is_by_parameter(value: Any) -> bool:
    """Return whether this is an optimizer whose state torch tells, parameter by parameter.

    Torch has a new one make a step for that, which those like `LBFGS` cannot, as they evaluate the
    model themselves. They keep one state for all parameters.
    """
    from torch.optim import Optimizer

    if not isinstance(value, Optimizer):
        return False
    closure = inspect.signature(type(value).step).parameters.get("closure")
    parameters = [each for group in value.param_groups for each in group["params"]]
    is_sharded = any(hasattr(each, "placements") for each in parameters)
    return is_sharded or closure is None or closure.default is not closure.empty


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _check_names(values: Mapping[str, Any], folder: CheckpointFolder) -> None:
    if missing := [name for name in values if name not in folder.names]:
        has = ", ".join(folder.names) or "nothing"
        raise UsageError(f"the checkpoint {folder.path} has no {missing[0]}: it has {has}.")
    for name, kind in _kinds(values).items():
        if kind == "value":
            raise UsageError(
                f"{name} cannot be restored in place: leave it out, and take it from what sky.load "
                f'returns, as in sky.load(path, …)["{name}"].'
            )
        if kind != folder.names[name]:
            raise UsageError(f"{name} was something else when the checkpoint was saved.")


# Writing it


def _written(
    checkpoint: Any,
    state: dict[str, Any],
    folder: CheckpointFolder,
    together: CheckpointGroup,
    wait: bool,
) -> Future[Any]:
    """Write the state; return a future, which is done already if the caller waits."""
    writer = folder.writer()
    if wait:
        group = together.background_group() if folder.is_uploaded else None
        with _quiet():
            checkpoint.save(
                state,
                storage_writer=writer,
                process_group=group,
                **_alone(checkpoint.save, together),
            )
        saved: Future[Any] = Future()
        saved.set_result(None)
        return saved
    if not together:  # even in the thread that saves it
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
    with _quiet():
        future: Future[Any] = checkpoint.async_save(
            state,
            storage_writer=writer,
            process_group=together.background_group(),
            **_alone(checkpoint.async_save, together),
        )
    return future


def _alone(function: Any, together: CheckpointGroup) -> dict[str, bool]:
    """Return arguments that tell torch that this rank is alone; before 2.9, torch knows itself."""
    takes = inspect.signature(function).parameters
    return {"no_dist": not together} if "no_dist" in takes else {}


def _finish_latest() -> None:
    """Wait for a save in progress, which uses the same connections and perhaps the same folder."""
    global _latest
    saving, _latest = _latest, None
    if saving is not None:
        saving.warn()


def _checkpoint() -> Any:
    try:
        import torch.distributed.checkpoint
    except ImportError as error:
        raise UsageError(f"a checkpoint needs torch here ({error}): pip install torch.") from None
    return torch.distributed.checkpoint


def _quiet() -> AbstractContextManager[Any]:
    """Keep torch's internal warnings out of every rank's output."""
    return warnings.catch_warnings(action="ignore")


def _raise_interrupt(error: BaseException) -> None:
    """Raise an interrupt as such: torch wraps whatever a rank raises in an error of its own."""
    failures: Mapping[int, Any] = getattr(error, "failures", {})
    for each in (error, *(cause for cause, *_ in failures.values())):
        if isinstance(each, KeyboardInterrupt | SystemExit):
            raise each
