"""What a cluster gets while it is up; for the user's thread."""
