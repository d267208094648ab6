-- expect: a metatable may not carry __concat
-- Debian's Lua 5.4.4 keeps a pointer to the stack over a __concat that makes the stack grow, and crashes
local function deep(n) if n == 0 then return 0 end return 1 + deep(n - 1) end
local mt = { __concat = function(a, b) deep(10000) return "r" end }
local t = setmetatable({}, mt) -- here
local function f() local x, y, z = "a", "b", "c" return x .. y .. z .. t .. z .. y .. x .. t .. z end
return f()
