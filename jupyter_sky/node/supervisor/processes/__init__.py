"""The processes of ranks: asking for them, why they end, and whether they come again."""
