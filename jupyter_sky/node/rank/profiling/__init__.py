"""Where the time of a rank goes: stacks of its threads, torch's own profiler, its memory."""
