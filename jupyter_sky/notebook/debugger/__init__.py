"""The prompts of ranks in the cell, and the debugger after a remote error."""
