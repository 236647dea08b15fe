"""From a candidate's text to objects that can be loaded."""
