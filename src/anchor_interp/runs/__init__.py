"""How a model came to be: configuration, objective, training, resume, store, kept measurements."""
