"""Packages that are added to a node while its cluster is up."""
