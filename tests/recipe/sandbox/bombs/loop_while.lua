-- expect: more than 5000000 instructions
while true do end -- here
