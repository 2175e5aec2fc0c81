"""Connections to ports that a node reaches, for a remote user."""
