"""The life of a cluster in the background: start, attach, process group, scaling, recovery."""
