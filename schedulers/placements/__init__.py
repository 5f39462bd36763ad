"""One placement a file. A new file here is a new placement: nothing else needs to know."""
