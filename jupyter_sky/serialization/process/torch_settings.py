"""The settings of torch that ranks take over: how it computes, prints, and shares memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

_PRECISION = ".fp32_precision"
_PRECISIONS = {
    f"cuda.matmul{_PRECISION}": "none",
    f"cudnn.conv{_PRECISION}": "tf32",
    f"cudnn.rnn{_PRECISION}": "tf32",
    f"mkldnn.matmul{_PRECISION}": "none",
    f"mkldnn.conv{_PRECISION}": "none",
    f"mkldnn.rnn{_PRECISION}": "none",
}
USUAL: Mapping[str, Any] = {
    "default_dtype": "float32",
    "float32_matmul_precision": "highest",
    "deterministic_debug_mode": 0,
    "sharing_strategy": "file_descriptor" if sys.platform == "linux" else "file_system",
    "cudnn.benchmark": False,
    "cudnn.deterministic": False,
    "grad_enabled": True,
    "detect_anomaly": False,
    "default_device": "cpu",
    "print.precision": 4,
    "print.threshold": 1000,
    "print.edgeitems": 3,
    "print.linewidth": 80,
    "print.sci_mode": None,
    **_PRECISIONS,
}


def values(torch: Any) -> Mapping[str, Any]:
    """Return the settings, by their names."""
    cudnn = torch.backends.cudnn
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        **_precisions(torch),
        "deterministic_debug_mode": torch.get_deterministic_debug_mode(),
        "sharing_strategy": torch.multiprocessing.get_sharing_strategy(),
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.deterministic": cudnn.deterministic,
        "grad_enabled": torch.is_grad_enabled(),
        "detect_anomaly": torch.is_anomaly_enabled(),
        "default_device": _default_device(torch),
        **{f"print.{key}": value for key, value in vars(torch._tensor_str.PRINT_OPTS).items()},
    }


def _precisions(torch: Any) -> dict[str, str]:
    try:
        return {"float32_matmul_precision": torch.get_float32_matmul_precision()}
    except RuntimeError:  # since torch 2.9, each backend can have its own, which has no such name
        return {key: attrgetter(key)(torch.backends) for key in _PRECISIONS}


def _default_device(torch: Any) -> str:
    # `get_default_device` takes as long as all other settings together.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context.device.type if context else "cpu"


def change(torch: Any, key: str, value: Any) -> None:
    """Change a setting."""
    match key:
        case "default_dtype":
            torch.set_default_dtype(getattr(torch, value))
        case "float32_matmul_precision":
            torch.set_float32_matmul_precision(value)
        case "deterministic_debug_mode":
            torch.use_deterministic_algorithms(value > 0, warn_only=value == 1)
        case "sharing_strategy":
            torch.multiprocessing.set_sharing_strategy(value)
        case "cudnn.benchmark":
            torch.backends.cudnn.benchmark = value
        case "cudnn.deterministic":
            torch.backends.cudnn.deterministic = value
        case "grad_enabled":
            torch.set_grad_enabled(value)
        case "detect_anomaly":
            torch.autograd.set_detect_anomaly(value)
        case "default_device" if value == "cpu":
            torch.set_default_device(None)
        case "default_device" if value == "meta" or getattr(torch, value).is_available():
            torch.set_default_device(value)  # of several GPUs, each rank has its own
        case _ if key.endswith(_PRECISION):
            attrgetter(key.removesuffix(_PRECISION))(torch.backends).fp32_precision = value
        case _ if key.startswith("print."):
            setattr(torch._tensor_str.PRINT_OPTS, key.removeprefix("print."), value)
