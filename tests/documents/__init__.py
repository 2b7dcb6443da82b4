"""The pages of the documentation: what they show runs."""
