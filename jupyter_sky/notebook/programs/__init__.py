"""Notebooks and scripts without a page: ``jupyter sky run``, and ``%sky export``."""
