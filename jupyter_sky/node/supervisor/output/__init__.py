"""The output of ranks: as much as a notebook can show goes to clients, everything to the logs."""
