"""Native core of cachelb."""
