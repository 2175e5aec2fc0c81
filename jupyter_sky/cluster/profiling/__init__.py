"""Where the time of ranks goes: stacks of a run that goes on, and what ranks have recorded."""
