"""What torch makes of models: sharded ones, wrapped ones, compiled ones."""
