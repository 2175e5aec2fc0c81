"""What ranks take over of the process of the notebook, beside its names."""
