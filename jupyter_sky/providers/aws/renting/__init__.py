"""From settings and a specification to instances: choosing, asking, renting, dry runs."""
