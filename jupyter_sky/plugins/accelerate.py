"""Hugging Face Accelerate: the settings of ``accelerate launch``, on running ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypedDict, get_type_hints

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._environment import environment
from jupyter_sky.plugins._install import check_installed, install, needs
from jupyter_sky.plugins.torch_group.formation import is_formed, process_group
from jupyter_sky.plugins.torch_group.former import forget_accelerate
from jupyter_sky.providers.spec import Image


class FsdpConfig(TypedDict, total=False):
    """The settings of FSDP: Accelerate's names without ``fsdp_``."""

    version: int
    sharding_strategy: str
    reshard_after_forward: bool | str
    auto_wrap_policy: str
    transformer_layer_cls_to_wrap: str
    min_num_params: int
    backward_prefetch: str
    forward_prefetch: bool
    state_dict_type: str
    use_orig_params: bool
    cpu_ram_efficient_loading: bool
    sync_module_states: bool
    offload_params: bool
    activation_checkpointing: bool
    activation_checkpointing_offload: bool
    ignored_modules: str


class DeepSpeedConfig(TypedDict, total=False):
    """The settings of DeepSpeed, by Accelerate's names; ``config_file`` is a file on the nodes."""

    config_file: str
    zero_stage: int
    offload_optimizer_device: str
    offload_param_device: str
    offload_optimizer_nvme_path: str
    offload_param_nvme_path: str
    gradient_accumulation_steps: int
    gradient_clipping: float
    zero3_save_16bit_model: bool


class AccelerateConfig(TypedDict, total=False):
    """The part of ``accelerate config`` that is not about machines, which the cluster provides."""

    mixed_precision: str
    gradient_accumulation_steps: int
    fsdp: FsdpConfig
    deepspeed: DeepSpeedConfig


def accelerate(
    config: AccelerateConfig | None = None, *, deadline: float = 60.0, single_rank: bool = False
) -> Plugin:
    """Install Accelerate on the nodes, and configure it and its process group on the ranks.

    If the torch plugin precedes it in the list, Accelerate uses that plugin's group.

    Parameters
    ----------
    config
        Mixed precision, FSDP or DeepSpeed, like
        ``{"mixed_precision": "bf16", "fsdp": {"sharding_strategy": "FULL_SHARD"}}``. FSDP and
        DeepSpeed need a GPU for each rank.
    deadline
        Seconds to wait for all ranks when the process group is formed.
    single_rank
        Form a group of one if the cluster has a single rank.

    Raises
    ------
    UsageError
        If ``config`` has an unknown setting, or both FSDP and DeepSpeed; on ranks, if it has one of
        these and they have no GPU.
    """
    variables = _variables(config or {})
    return Plugin(
        "accelerate",
        transform=_install_accelerate,
        around_app=partial(
            _configured, variables=variables, deadline=deadline, single_rank=single_rank
        ),
        preload=("torch",),
        connects="torch",
    )


def _install_accelerate(image: Image, cluster: Any) -> Image:
    return install(image, ["accelerate"])


@contextmanager
def _configured(
    info: InstanceInfo, variables: Mapping[str, str], deadline: float, single_rank: bool
) -> Iterator[None]:
    with needs("accelerate", "accelerate"):
        import accelerate  # noqa: F401
        import torch
    if "ACCELERATE_USE_DEEPSPEED" in variables:
        check_installed("deepspeed")
    if not torch.cuda.is_available():
        _check_fits_cpu(variables)
    group = nullcontext() if is_formed() else process_group(info, None, deadline, single_rank)
    with environment(variables), group:
        _apply_to_next()
        yield


def _check_fits_cpu(variables: Mapping[str, str]) -> None:
    """Refuse what Accelerate would leave out without a word, where there is no GPU."""
    for setting, name in (("fsdp", "FSDP"), ("deepspeed", "DeepSpeed")):
        if f"ACCELERATE_USE_{name.upper()}" in variables:
            raise UsageError(
                f'config["{setting}"] needs a GPU for each rank, and this rank has none: '
                f"Accelerate would train a copy of the model on each. Leave {setting} out, or use "
                "torch's `fully_shard`, which works on processors."
            )


_is_applied = False


def _apply_to_next() -> None:
    """Let the next `Accelerator` read the variables, if cells have made some without them.

    When the group is formed again, those that there are go on.
    """
    global _is_applied
    if not _is_applied:
        forget_accelerate()
        _is_applied = True


# The configuration, as environment variables for Accelerate

_NAMES = {
    "transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
}


def _variables(config: AccelerateConfig) -> dict[str, str]:
    _check(config, AccelerateConfig, "config")
    if "fsdp" in config and "deepspeed" in config:
        raise UsageError("config has both fsdp and deepspeed: keep one of them.")
    variables: dict[str, str] = {}
    general: dict[str, Any] = {**config}
    if fsdp := general.pop("fsdp", None):
        _check(fsdp, FsdpConfig, 'config["fsdp"]')
        variables |= {"ACCELERATE_USE_FSDP": "true", **_named(fsdp, "FSDP_")}
    if deepspeed := general.pop("deepspeed", None):
        _check(deepspeed, DeepSpeedConfig, 'config["deepspeed"]')
        variables |= {"ACCELERATE_USE_DEEPSPEED": "true"}
        variables |= _named(deepspeed, "ACCELERATE_DEEPSPEED_")
    return variables | _named(general, "ACCELERATE_")


def _check(config: Any, kind: type, what: str) -> None:
    known = get_type_hints(kind)
    if not isinstance(config, Mapping):
        raise UsageError(f"{what}={config!r} is no dict: its settings are {', '.join(known)}.")
    if unknown := [key for key in config if key not in known]:
        raise UsageError(f"{what} has {unknown[0]!r}, which is none of {', '.join(known)}.")


def _named(settings: Mapping[str, Any], prefix: str) -> dict[str, str]:
    return {
        _NAMES.get(key, prefix + key.upper()): (
            str(value).lower() if isinstance(value, bool) else str(value)
        )
        for key, value in settings.items()
    }
