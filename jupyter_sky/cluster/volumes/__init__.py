"""Data in buckets on the nodes of a cluster."""
