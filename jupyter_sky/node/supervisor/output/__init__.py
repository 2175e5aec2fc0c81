"""What ranks print and display: as much as fits goes to the clients, all of it to their logs."""
