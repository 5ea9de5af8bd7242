"""The web application: *My home* for residents, *Operations* for operators."""
