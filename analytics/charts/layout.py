"""Sizes in pixels and colours that all charts share."""

WIDTH, PLOT_HEIGHT = 900.0, 320.0
LEFT, TOP, RIGHT, BOTTOM = 72.0, 64.0, 24.0, 56.0
BINS = 240  # of the time axis, where values are averaged
INK, FAINT, GRID = "#24292f", "#6e7781", "#e4e8ec"
