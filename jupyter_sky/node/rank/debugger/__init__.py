"""The debugger inside a rank, and other prompts to the user."""
