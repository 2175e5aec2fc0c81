"""Arrays as numpy keeps them: as parts of files."""
