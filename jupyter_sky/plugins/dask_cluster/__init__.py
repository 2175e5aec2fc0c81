"""Dask on the nodes of a cluster: started by the notebook, kept running by the ranks."""
