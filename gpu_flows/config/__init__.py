"""The configuration of a pool: its three blocks, applied again whenever they change, and the paths on disk.

Here: reading block documents, applying their changes to the running pool, and the location of files. Not
here: the block classes themselves (`blocks`), and creating pools (`bootstrap`).
"""
