"""Objectives: rows, and answers of the student, learned with a teacher."""
