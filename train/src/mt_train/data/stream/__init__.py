"""Rows without random access: where a stream is read, its rows in encoded blocks, and these as optimizer steps.

A block is what ``data.shuffle_buffer`` holds: so many rows, read in the order of the source, shuffled and packed among
themselves. Everything about a step then follows from seed, epoch, number of the block and row in it, on any number of ranks,
and a position in the middle of a block is resumed from the block's begin.
"""
