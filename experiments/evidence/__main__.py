"""Measures what the command line names."""

from evidence.measured import main

main()
