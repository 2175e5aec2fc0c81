"""What ranks use of their node: now, and in the last minutes."""
