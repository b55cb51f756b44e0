"""Reports: folders of plans and runs -> one HTML page."""
