"""What processes say to each other: the types of messages and events, and what these describe."""
