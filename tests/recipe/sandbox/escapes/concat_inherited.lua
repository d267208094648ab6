-- nor through a metatable of the metatable
local mt = setmetatable({}, { __index = { __concat = function() return "x" end } })
local t = setmetatable({}, mt)
assert(not pcall(function() return "a" .. t end))
return "contained"
