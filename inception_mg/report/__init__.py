"""What sits where and what crosses which wire: the plan, the table, the page with pictures; and figures as PNG."""
