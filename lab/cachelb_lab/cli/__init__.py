"""The commands `cachelb demo`, `replay`, `bench`, `league`, `learn`, `explain` and `doctor analyze`."""
