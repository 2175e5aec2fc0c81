"""A ``%%sky`` cell: how it becomes a run, and is retried if it loses a rank or a node."""
