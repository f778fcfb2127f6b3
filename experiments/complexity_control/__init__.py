"""The figures of the complexity-control paper, one file each."""
