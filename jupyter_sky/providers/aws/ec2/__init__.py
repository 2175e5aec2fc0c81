"""What is rented and released at EC2: instances, network, keys, images."""
