"""What a project needs on the nodes besides its cells: packages, folders, files."""
