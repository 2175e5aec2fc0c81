"""What a cell shows of several ranks: labels, their order, and what each of them clears."""
