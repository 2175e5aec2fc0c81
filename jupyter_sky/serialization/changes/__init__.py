"""What one side has changed in a value that both have, so that only this is changed there."""
