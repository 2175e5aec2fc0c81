"""Shows where time and memory go: pictures without scripts, and text."""
