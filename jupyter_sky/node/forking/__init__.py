"""How ranks get their processes: forks of a process that has imported what all of them need."""
