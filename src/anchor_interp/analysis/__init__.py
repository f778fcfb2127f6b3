"""What is found in a model: similarity, clusters, routes, circuits, fingerprint, verdict."""
