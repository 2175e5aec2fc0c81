"""What a person touches in IPython: the magics, their options, and how output is shown."""
