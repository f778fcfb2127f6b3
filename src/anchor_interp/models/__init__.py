"""What answers: shapes, gamma initialisation, HookedTransformers, fast forward, exact models."""
