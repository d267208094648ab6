-- no count, no weak table, no finaliser: when memory is collected cannot be seen
assert(collectgarbage == nil)
assert(not pcall(setmetatable, {}, { __mode = "v" }) and not pcall(setmetatable, {}, { __gc = print }))
return "contained"
