def html(planner, networks): return ''
