"""The report: results -> conclusions and words -> Markdown and one HTML page."""
