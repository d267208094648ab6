-- expect: more than 5000000 instructions
error(setmetatable({}, { __tostring = function() while true do end end })) -- here
