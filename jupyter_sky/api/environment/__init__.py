"""Which packages nodes get: those that the notebook imports, or those of a file."""
