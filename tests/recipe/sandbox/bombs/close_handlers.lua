-- expect: may not carry __close
local x <close> = setmetatable({}, { __close = function() while true do end end }) -- here
