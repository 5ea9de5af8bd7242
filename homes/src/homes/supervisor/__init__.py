"""The application's processes on one machine: started, started again, stopped."""
