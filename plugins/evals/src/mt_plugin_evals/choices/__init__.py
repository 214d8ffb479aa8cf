"""Questions with choices: the model takes the one whose text it finds likeliest."""
