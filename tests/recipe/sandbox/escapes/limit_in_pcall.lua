-- expect: more than 5000000 instructions
while true do pcall(function() while true do end end) end -- here
