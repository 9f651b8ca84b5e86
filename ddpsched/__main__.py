"""``python -m ddpsched``."""

from ddpsched.cli import main

main()
