-- expect: a metatable may not carry __close
-- Lua 5.4.4 loses its list of variables to close when a loop with one breaks
for k in next, { a = 1 }, nil, setmetatable({}, { __close = print }) do -- here
  local f = function() return k end
  break
end
