"""What ranks can ask of the volumes of their node."""
