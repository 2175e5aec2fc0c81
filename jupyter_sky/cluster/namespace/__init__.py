"""Keeping the ranks' variables in step with the notebook's."""
