"""Figures: each module turns the rows of a query, or a simulation, into a plotly figure, and knows no file.

    theme            colours, fonts and axes that all figures share; names made harmless
    time_axis        times of real pools as dates, those of simulations as durations
    bins             periods cut at the edges of intervals, in SQL
    chart            a figure of the history: its question, its SQL, how it is drawn
    catalogue        every figure of the history, in the order of the report

The figures of the history are one module each, named after what they show. Others are drawn from a simulation
(`simulated`), from predictions (`calibration`), from trainings (`learning`) and from studies (`intervals`).

A figure never holds more than a few thousand marks: the SQL of a large history sums up, and the subtitle says
so. plotly is the extra `charts`; importing this package alone does not import it.
"""
