local t = setmetatable({}, { __metatable = { secret = 1 } })
assert(getmetatable(t).secret == 1)
assert(not pcall(setmetatable, t, {}))
return "contained"
