"""Plugins for what only NVIDIA GPUs have."""
