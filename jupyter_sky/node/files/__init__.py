"""Finding and reading files that the notebook asks for."""
