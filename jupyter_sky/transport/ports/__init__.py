"""Connections to ports of nodes: what both sides know of them."""
