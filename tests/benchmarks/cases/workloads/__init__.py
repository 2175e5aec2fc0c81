"""What clusters are used for, beside other tools: training, models, and many small tasks."""
