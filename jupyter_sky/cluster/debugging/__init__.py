"""The prompts of ranks: who waits for the user, and what is answered."""
