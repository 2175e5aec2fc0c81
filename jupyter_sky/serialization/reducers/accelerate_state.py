"""Process-wide state of Accelerate, which objects must not carry to another process.

An `Accelerator`, and so a Hugging Face `Trainer`, refers to singletons that describe the process:
how many processes there are, which of them this is, its device. Those of the notebook say that it
is alone. With them, each rank would silently train by itself, on all of the data.
"""

from __future__ import annotations

from typing import Any


def reduce(state: Any) -> Any:
    """Reduce a state object of Accelerate to that of the receiver.

    Parameters
    ----------
    state
        An object of ``accelerate.state``.
    """
    own = getattr(state, "__dict__", {})
    match type(state).__name__:
        case "PartialState":
            return _partial_state, (bool(own.get("_cpu")),)
        case "AcceleratorState":
            asked = own.get("_mixed_precision"), bool(own.get("_cpu")), own.get("dynamo_plugin")
            return _accelerator_state, asked
        case "GradientState":
            return _gradient_state, (dict(state.plugin_kwargs),)
    return NotImplemented


def _partial_state(cpu: bool) -> Any:
    from accelerate.state import PartialState

    return _on_first_use(PartialState, cpu)


def _accelerator_state(*asked: Any) -> Any:
    from accelerate.state import AcceleratorState

    return _on_first_use(AcceleratorState, *asked, _from_accelerator=True)


def _on_first_use(kind: Any, *arguments: Any, **options: Any) -> Any:
    """Return this process's state of a kind, which initialises itself on first use.

    It arrives before the process group is formed, and would form a group of its own.
    """

    def make(self: Any) -> None:
        if not kind._shared_state:
            kind(*arguments, **options)
        self.__class__ = kind

    def made(self: Any, name: str) -> Any:
        if name.startswith("__") or kind._shared_state:
            return kind.__getattr__(self, name)  # which raises the error
        make(self)
        return getattr(self, name)

    def reduced(self: Any, protocol: Any) -> Any:
        # As when a `Trainer` saves a checkpoint: its arguments have a state in them.
        make(self)
        return self.__reduce_ex__(protocol)

    names = {
        "__getattr__": made,
        "__reduce_ex__": reduced,
        "__module__": kind.__module__,
        "__qualname__": kind.__name__,
    }
    state: Any = object.__new__(type(kind.__name__, (kind,), names))
    state.__dict__ = kind._shared_state
    return state


def _gradient_state(accumulation: dict[str, Any]) -> Any:
    from accelerate.state import GradientState

    state = GradientState()
    state.plugin_kwargs = accumulation
    return state
