"""Runs: what is asked for, the queue, the record of one run, its snapshot."""
