"""Content-addressed data on a node, and passing it on to other nodes."""
