"""Type hints in pickles: annotations, and what `typing` makes."""
