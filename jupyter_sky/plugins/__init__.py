"""One file a framework: ``sky.plugins.torch()`` and the others.

Each function has the name of its file. Importing a submodule puts the module into the package under
that name; importing the functions here, before anybody can import a submodule, is what leaves the
functions there for good. No framework is imported by this.
"""

from __future__ import annotations

from jupyter_sky.plugins.huggingface import huggingface
from jupyter_sky.plugins.jax import jax
from jupyter_sky.plugins.joblib import joblib
from jupyter_sky.plugins.keras import keras
from jupyter_sky.plugins.sklearn import sklearn
from jupyter_sky.plugins.torch import torch

__all__ = ["huggingface", "jax", "joblib", "keras", "sklearn", "torch"]
