"""Messages between a notebook, ranks, and the process that keeps the volumes of a node."""
