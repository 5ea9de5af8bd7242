"""``python -m homes``: the same as the command ``homes``."""

from homes.cli import main

main()
