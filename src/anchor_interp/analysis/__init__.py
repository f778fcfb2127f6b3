"""What is found in a model: similarity, routes, circuits, fingerprint, verdict; what pages show."""
