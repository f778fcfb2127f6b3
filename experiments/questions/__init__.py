"""Questions of our own, one file each."""
