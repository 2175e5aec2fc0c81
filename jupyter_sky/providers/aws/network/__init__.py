"""The network of instances: their subnets, who may log in, and whether this computer still may."""
