-- expect: (C stack overflow|__tostring fails)
local t
t = setmetatable({}, { __tostring = function() return tostring(t) end })
error(t)
