"""What is made at EC2 and given back: instances, network, keys, images."""
