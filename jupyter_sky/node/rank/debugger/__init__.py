"""The debugger inside of a rank, and what else asks the user something from there."""
