"""Many runs: specification, folder, engines, batches of models, table, diagrams, effects."""
