"""What the names of a rank stand for, and digests by which ranks are compared."""
