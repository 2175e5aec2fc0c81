"""Calls that ranks carry out one by one: batches, the run that they share, who gets which."""
