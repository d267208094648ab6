assert(not pcall(string.format, "%s%s%s", 1))
assert(not pcall(string.format, "%d"))
assert(not pcall(string.format, "%"))
return "contained"
