local ok, e = xpcall(error, function() error("again") end, "first")
assert(not ok)
ok, e = xpcall(error, error, "first")
assert(not ok)
return "contained"
