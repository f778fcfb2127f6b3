"""Questions of our own, a file each: its runs, its claims and its drawing."""
