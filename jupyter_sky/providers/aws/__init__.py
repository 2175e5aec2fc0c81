"""The AWS provider: nodes are instances of EC2, rented for the cluster and given back with it."""
