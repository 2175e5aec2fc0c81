"""How objects are pickled that pickle would copy, refuse, or write differently each time."""
