"""Data in buckets, as files of the node."""
