"""Hosts that SSH leads to: what files and values cost on the way."""
