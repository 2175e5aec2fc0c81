"""Compares the ranks' variables: whether they are equal, and where they first differ."""
