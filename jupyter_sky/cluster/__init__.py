"""A running cluster as the notebook sees it: its life, runs, events, the registry on disk."""
