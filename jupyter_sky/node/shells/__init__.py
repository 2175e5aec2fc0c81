"""Shells on a node, for a user who sits elsewhere."""
