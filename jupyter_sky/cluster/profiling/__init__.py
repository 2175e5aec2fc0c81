"""Profiles of ranks: sampled stacks of a running cell, and recordings of ranks."""
