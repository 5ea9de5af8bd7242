"""What a processor reports about itself, and how it is given out."""
