"""How a model came to be: configuration, training, resume, store."""
