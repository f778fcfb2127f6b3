"""What a person looks at: figures and pages. Nothing is computed here and no model is loaded."""
