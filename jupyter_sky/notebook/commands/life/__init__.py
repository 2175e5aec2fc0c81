"""Commands that start and end clusters, and that clean up after them."""
