"""Prompts of ranks at the user's side: debugger commands, lines, passwords."""
