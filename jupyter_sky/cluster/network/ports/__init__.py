"""Connections from this computer to ports of nodes."""
