local mt = {}
local t = setmetatable({}, mt)
rawset(getmetatable(t), "__gc", function() error("ran") end)
t = nil
for i = 1, 20000 do local garbage = { i } end
return "contained"
