"""Plugins for frameworks: ``sky.plugins.torch()`` and the others, each in a file of its own.

Each function has the name of its file. Importing a submodule binds its name in the package to the
module. So the functions are imported here, before any other code can import a submodule, and the
names stay bound to the functions. This does not import any framework.
"""

from __future__ import annotations

from jupyter_sky.plugins.accelerate import accelerate
from jupyter_sky.plugins.dask import dask
from jupyter_sky.plugins.huggingface import huggingface
from jupyter_sky.plugins.jax import jax
from jupyter_sky.plugins.joblib import joblib
from jupyter_sky.plugins.keras import keras
from jupyter_sky.plugins.nvidia.cuml import cuml
from jupyter_sky.plugins.nvidia.mig import mig
from jupyter_sky.plugins.nvidia.mps import mps
from jupyter_sky.plugins.sklearn import sklearn
from jupyter_sky.plugins.torch import torch

__all__ = [
    "accelerate",
    "cuml",
    "dask",
    "huggingface",
    "jax",
    "joblib",
    "keras",
    "mig",
    "mps",
    "sklearn",
    "torch",
]
