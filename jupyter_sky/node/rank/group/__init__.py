"""The process group of a rank: entering it, meeting the head, and breaking a collective."""
