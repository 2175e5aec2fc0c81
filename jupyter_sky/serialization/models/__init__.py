"""Models in the forms that torch gives them: sharded, wrapped, compiled."""
