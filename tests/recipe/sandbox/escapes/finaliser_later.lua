-- a metatable is taken as it is when it is set: what is written later has no effect
local mt = {}
local t = setmetatable({}, mt)
mt.__gc = function() error("ran") end
mt.__close = mt.__gc
mt.__mode = "k"
t = nil
for i = 1, 20000 do local garbage = { i } end
return "contained"
