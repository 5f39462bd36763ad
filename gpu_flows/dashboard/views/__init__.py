"""What each view shows: one module each, whose `values` are those of the template of the same name."""
