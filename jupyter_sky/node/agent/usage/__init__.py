"""The resource usage of ranks: now, and in the last minutes."""
