"""What is asked: anchor tasks, their sequences and counterfactuals; random numbers."""
