"""What the file of the registry keeps: its tables, the rows of clusters, what they have cost."""
