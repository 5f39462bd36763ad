"""The commands that simulate: simulate and compare.

Both read their options (`options`) into what they describe (`inputs`, with `policy_choices` and
`assumptions`), run every policy (`running`), compute what no policy can beat (`limits`), turn the outcome
into data (`results`, with `caveats`), print it (`tables`) and write files (`outputs`, with `charts` and
`warehouse`).

Not here: the simulator itself, which is `gpu_flows.schedulers.simulation`.
"""
