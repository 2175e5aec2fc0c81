"""What can be rented and for how much: types, prices, selection, confirmation."""
