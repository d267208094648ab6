-- expect: more than 5000000 instructions
while true do (("a"):rep(1000)):gsub("", function() return "a" end) end -- here
