"""What will happen in a pool, by simulating it forward from its present state, and what would happen if
something were different."""
