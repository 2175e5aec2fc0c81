"""Dask on the nodes of a cluster: started from the notebook, kept up by the ranks."""
