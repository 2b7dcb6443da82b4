"""The pages of the documentation: their code runs."""
