"""What is typed: the command line."""
