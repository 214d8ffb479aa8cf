"""Update rules: what an optimizer does to one tensor."""
