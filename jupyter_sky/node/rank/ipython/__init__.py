"""IPython on a rank: the shell that runs cells, what it displays, and its tracebacks."""
