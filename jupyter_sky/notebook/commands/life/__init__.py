"""Commands on the life of a cluster: how it begins and ends, and what it leaves behind."""
