"""Training many runs."""
