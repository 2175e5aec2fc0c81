"""Runs: the task, the run in the loop and its handle for the user, the scheduler, snapshots."""
