"""What configures a pool: its three blocks, read and followed while jobs run, and the paths on disk.

Here: reading block documents, applying their changes to the running pool, and the location of the
project's files. Not here: the block classes themselves (`blocks`), and creating pools (`bootstrap`).
"""
