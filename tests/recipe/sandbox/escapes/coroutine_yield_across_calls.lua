for _, f in ipairs {
  function() table.sort({ 3, 2, 1 }, function(a, b) coroutine.yield() return a < b end) end,
  function() (("x"):rep(3)):gsub("x", coroutine.yield) end,
  function() require("fvlm").adamw(coroutine.yield()) end,
  function() tostring(setmetatable({}, { __tostring = coroutine.yield })) end,
  function() for k in pairs(setmetatable({}, { __pairs = coroutine.yield })) do end end,
} do
  coroutine.resume(coroutine.create(f))
end
return "contained"
