"""``python -m leasehold``: the command line."""

from leasehold.cli import main

if __name__ == "__main__":
    main()
