"""The events of a node: where they are kept, and how each client gets them."""
