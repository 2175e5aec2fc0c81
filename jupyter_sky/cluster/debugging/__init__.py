"""The prompts of ranks: which of them wait for the user, and the answers."""
