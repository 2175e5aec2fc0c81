"""Shows the start of a cluster, in notebooks and elsewhere."""
