assert(not pcall(select, 0) and not pcall(select, -2, 1) and not pcall(select, math.mininteger, 1))
assert(select("#", select(math.maxinteger, 1, 2)) == 0)
return "contained"
