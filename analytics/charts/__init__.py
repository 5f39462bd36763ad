"""SVG charts of simulations: line_charts compares policies, gantt_chart shows which job held which device.

A chart is one small string of SVG without scripts, fonts or links. The names of jobs and policies are
always escaped, so they can only ever be text in it. layout, sheet and axes hold what both draw with.
"""
