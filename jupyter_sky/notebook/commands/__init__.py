"""`%sky COMMAND`: one file for each command, or for a few related ones."""
