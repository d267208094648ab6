-- expect: more than 5000000 instructions
xpcall(function() while true do end end, function() return "caught" end) -- here
return "escaped"
