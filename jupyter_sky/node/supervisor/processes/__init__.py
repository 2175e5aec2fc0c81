"""The processes of ranks: asking for them, waiting for their ends, and whether they come again."""
