local name = setmetatable({}, { __tostring = function() return "helper" end, __index = string })
assert(not pcall(require, name))
return "contained"
