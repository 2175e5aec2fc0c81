"""The prompts of ranks where the user is: commands of the debugger, lines, passwords."""
