"""What a project needs on the nodes beside its cells: packages, folders, files."""
