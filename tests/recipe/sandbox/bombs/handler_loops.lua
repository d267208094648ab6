-- expect: more than 5000000 instructions
xpcall(error, function() while true do end end) -- here
