"""What a cell shows: streamed output, progress, the handle of a background run."""
