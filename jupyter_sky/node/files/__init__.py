"""Files of a node that the notebook asks for."""
