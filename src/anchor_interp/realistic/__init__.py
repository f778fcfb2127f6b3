"""What else is asked: the papers' realistic tasks, with their files, caches and tokenizers."""
