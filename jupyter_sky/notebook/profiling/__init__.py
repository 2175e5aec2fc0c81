"""What a cell shows of where time and memory go: pictures without scripts, and text."""
