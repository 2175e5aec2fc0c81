"""Where nodes come from: one provider a module, and what they are asked for in `spec`."""
