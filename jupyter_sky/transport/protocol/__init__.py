"""The protocol between processes: types of messages, events, and the data in them."""
