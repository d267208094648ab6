-- the other operators survive a stack that moves
local function deep(n) if n == 0 then return 0 end return 1 + deep(n - 1) end
local mt = {}
for _, event in ipairs { "add", "sub", "mul", "unm", "lt", "le", "eq", "len", "index", "call", "band", "shl", "idiv" } do
  mt["__" .. event] = function(a, b) deep(10000) return event == "lt" or event == "le" or event == "eq" or 1 end
end
local t, u = setmetatable({}, mt), setmetatable({}, mt)
local x = t + u + t * 2 - -t + #t + t.field + t(1) + (t & 1) + (t << 2) + (t // 3)
assert(t < u and t <= u and t == u and x == 7)
assert(coroutine.wrap(function() return t + t end)() == 1)
return "contained"
