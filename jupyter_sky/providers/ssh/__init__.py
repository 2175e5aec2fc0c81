"""The SSH provider: nodes are hosts that the user can log in to."""
