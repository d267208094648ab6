-- expect: (C stack overflow|loop)
local t = setmetatable({}, {})
local mt = { __index = function(t, k) return t[k] end }
t = setmetatable({}, mt)
return t.x
