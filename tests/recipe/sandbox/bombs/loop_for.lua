-- expect: more than 5000000 instructions
for i = 1, math.huge do end -- here
