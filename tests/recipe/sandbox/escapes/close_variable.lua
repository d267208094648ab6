-- expect: got a non-closable value
local x <close> = setmetatable({}, {}) -- here
