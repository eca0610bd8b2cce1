"""Images to records, records to batches."""
