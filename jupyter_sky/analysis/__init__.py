"""Static analysis of cells: which names they read and bind."""
