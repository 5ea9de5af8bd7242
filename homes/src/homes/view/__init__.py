"""What readers ask of the activity table: the last hour and day of a home, and totals."""
