"""Plugins for features of NVIDIA GPUs."""
