"""The history of every pool: facts are recorded in a DuckDB file, and SQL answers questions about them.

Facts on their way into the file:

    facts            one class per table
    recorder         accepts facts from the worker, without blocking it
    fact_spool       the files on disk in which facts wait
    warehouse        loads those files into the DuckDB file
    sample_minutes   rolls old samples up into minutes, and deletes those that are not kept
    insert_statements, migrations
                     how a fact becomes a row; the schema and the views of the file

Answers out of it:

    query_runner     runs SQL, or a named query, in a process of its own (query_process)
    export           writes tables and views to Parquet or CSV files
    recorded_trace   a pool's recorded jobs as a trace for the simulator
    simulated_facts  the facts of a simulation, as a live pool would have recorded them
    figures          plotly figures, each a pure function of query results or of a simulation
    pages            HTML templates for figures and tables
    report           all of them in one file (with report_tables)

SQL: schema/ holds migrations, views/ one view or macro per file, queries/ one named query per file
(sql_files reads them). Adding a view or a named query is one new file.

Not here: anything that knows Prefect or Docker.
"""

if __name__ == "analytics":
    raise ImportError("import gpu_flows.analytics, not analytics")
