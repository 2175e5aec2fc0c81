"""What runs on a node: agent, zygote, ranks."""
