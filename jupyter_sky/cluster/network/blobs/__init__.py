"""Blobs of nodes in the memory of this computer: those that come, and those that are shared."""
