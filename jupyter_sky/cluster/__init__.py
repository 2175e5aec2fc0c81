"""A running cluster as the notebook sees it: `Cluster` is the face of this package."""
