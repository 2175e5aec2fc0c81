"""`%sky COMMAND`: one file for each command."""
