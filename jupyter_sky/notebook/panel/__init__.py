"""The panel below a cell, and its static view where no widget can live."""
