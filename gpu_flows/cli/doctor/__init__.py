"""The command `doctor`: checks of the setup around a pool.

`doctor` runs the checks of `machine_checks`, `server_checks` and `docker_checks`. A check is a function
from a `CheckContext` to findings (both in `checks`); to add one, write it and add it to `CHECKS` in
`doctor`. Not here: repairs. A finding states how to fix a fault, and the user decides.
"""
