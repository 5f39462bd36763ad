"""The dashboard: a live page about one pool, served on this machine only. It changes nothing in the pool.

    server       serves the page on 127.0.0.1 until Ctrl-C
    app          what the server answers: pages, their fragments, figures, files
    guard        refuses requests that do not come from a page of this server
    pool_watch   reads what the worker writes: the status and the state of the pool
    answers      answers that take a while: computed once for all who ask, a few at a time, and kept
    pages        fills in the templates
    views/       what each view shows, from the status to the values of its template
    questions    asks a process of its own: forecasts, replays
    simulating   that process

A page consists of fragments. The browser fetches them again every second, but is told in a few bytes if
nothing has changed; what changed is put into the page without touching what has the focus. Filters, order,
period and the open job are part of the address, so a view can be shared.
"""
