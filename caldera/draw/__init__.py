"""Pictures and pages: charts, graphs, one palette, one page frame."""
