"""Machines of a cluster that are stopped, and started again with the same disks."""
