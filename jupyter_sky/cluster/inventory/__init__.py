"""Clusters on disk and left behind: registry, probes, orphans, cloud resources."""
