-- expect: more than 5000000 instructions
for i in ipairs(setmetatable({}, { __index = function() return 1 end })) do end
