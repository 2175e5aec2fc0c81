"""What runs on a node: its agent, and the ranks that the agent supervises."""
