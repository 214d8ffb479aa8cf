"""The measures of trained models on rows and evaluations."""
