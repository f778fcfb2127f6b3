"""What a model answers: accuracies, the phase that follows from them, maps of answers."""
