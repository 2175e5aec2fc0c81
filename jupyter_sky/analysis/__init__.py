"""What a cell reads and binds, found in its code."""
