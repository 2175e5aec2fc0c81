"""How ranks get their processes: forked by one that has imported what all of them need."""
