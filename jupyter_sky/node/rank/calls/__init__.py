"""Calls that a rank carries out one by one, and their conversation with the notebook."""
