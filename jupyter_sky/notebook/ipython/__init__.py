"""Hooks into the shell: completion, automatic cells, assignments."""
