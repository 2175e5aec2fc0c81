"""Shells on a node, for a remote user."""
