"""One policy a file. A new file here is a new policy: nothing else needs to know."""
