"""The papers' data sets, read from `$FEDSHIFT_DATA/<set>/`; `catalogue` names their federations."""
