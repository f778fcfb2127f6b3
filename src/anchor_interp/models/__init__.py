"""What answers: shapes, gamma init, HookedTransformers, fast forward; complexity of weights."""
