"""Parts of rows that are no text: found in every documented form of a row, and checked before anything is opened."""
