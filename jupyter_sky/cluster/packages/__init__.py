"""Packages that are installed while a cluster is up."""
