"""What is shown of a cluster while it starts, in notebooks and elsewhere."""
