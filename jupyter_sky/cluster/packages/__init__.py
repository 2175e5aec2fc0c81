"""Installing packages on a running cluster."""
