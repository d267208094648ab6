-- expect: more than 5000000 instructions
table.move({}, 1, math.maxinteger - 1, 2) -- here
