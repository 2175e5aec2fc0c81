"""Profiles of a rank: sampled stacks, torch's own profiler, and memory."""
