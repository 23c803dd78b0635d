"""Reports: charts, HTML pages, tables, comparisons of runs."""
