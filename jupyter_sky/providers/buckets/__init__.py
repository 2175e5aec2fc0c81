"""Data in buckets and shared folders: what it is, and what nodes need to get at it."""
