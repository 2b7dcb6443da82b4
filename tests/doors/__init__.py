"""Values by every door: each is judged as `insert` judges the Python value, and stored as it is or refused."""
