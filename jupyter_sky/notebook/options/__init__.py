"""What can be typed: the tables of options and commands, and their parser."""
