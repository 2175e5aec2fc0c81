"""The network of instances: subnets, access rules, and this computer's access."""
