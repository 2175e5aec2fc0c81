"""The strip above a cell's output, with a live widget or a static view."""
