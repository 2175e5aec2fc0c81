"""Many calls on a pool: sent to free ranks, with results as they arrive."""
