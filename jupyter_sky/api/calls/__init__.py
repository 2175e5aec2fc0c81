"""Many calls on a pool: sent to whichever rank is free, their results as they come."""
