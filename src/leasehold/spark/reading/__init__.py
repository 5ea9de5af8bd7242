"""Reading ranges of a feed as rows: what the executors run, and the DataFrame over it."""
