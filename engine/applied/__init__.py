"""Changes that another site has made: applied in batches, each row with its own outcome; rows sent again, and absences.

Read `applied_rows`.
"""
