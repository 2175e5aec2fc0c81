"""Events of a node that leave it as one message, where each alone would say almost nothing."""
