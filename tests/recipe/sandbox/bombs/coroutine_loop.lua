-- expect: more than 5000000 instructions
coroutine.wrap(function()
  while true do end -- here
end)()
