"""What sits where and what crosses which wire: the runtime's records, the plan, the page, the timeline."""

from inception_mg.report.records import (
    Transfer,
    bytes_between,
    devices_of_ops,
    short_device,
    trace_options,
    transfers,
)

__all__ = ['Transfer', 'bytes_between', 'devices_of_ops', 'short_device', 'trace_options', 'transfers']
