-- expect: a metatable may not carry __gc
setmetatable({}, { __gc = function() end }) -- here
