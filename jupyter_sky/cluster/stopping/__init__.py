"""Stopping the machines of a cluster, and starting them again with the same disks."""
