"""The figures and tables of a report."""

from profiler.reports.page import Figure, Records, Report, Table


def figures_of(report: Report) -> list[Figure]:
    return [b for section in report.sections for b in section.blocks if isinstance(b, Figure)]


def rows_of(report: Report, caption: str) -> Records:
    """The rows of the table whose caption begins like this."""
    blocks = (b for section in report.sections for b in section.blocks)
    [table] = [b for b in blocks if isinstance(b, Table) and b.caption.startswith(caption)]
    return table.rows
