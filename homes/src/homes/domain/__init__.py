"""What everything else is about: readings, kinds of sensor, thresholds, the activity row."""
