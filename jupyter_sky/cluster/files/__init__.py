"""Files that come from the nodes of a cluster to this computer."""
