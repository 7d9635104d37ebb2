"""Automatic differentiation: the bound in PyTorch, float64. It needs the extra ``gplvm``.

`kernel`, `coupling`, `reverse` and `likelihood` are the terms, one file each; `bound` adds them up; `passes`
goes through the rows of a block, arrays in and arrays out; `optimise` is Adam.
"""
