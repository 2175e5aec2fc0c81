"""Clusters from outside: the registry on disk, probes, orphans, what is rented, kernel files."""
