"""The figures of the NeurIPS paper, one file each."""
